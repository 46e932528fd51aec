// SPDX-License-Identifier: Apache-2.0
// Forward and backward of SyncBatchNorm's arithmetic, the exchange left out, on ResNet-50's shapes. One line a shape:
// microseconds of the median run, and ratios to what stands beside it in the same run.
//
//   bench_sync_batch_norm cpu       beside torch's BatchNorm
//   bench_sync_batch_norm cuda      beside torch's BatchNorm (cuDNN) and the calls that PyTorch's SyncBatchNorm makes
#include <ATen/ATen.h>
#include <torch/cuda.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string_view>
#include <vector>

#include "nn/channel_math.h"
#include "nn/shared_statistics.h"

namespace {

using Clock = std::chrono::steady_clock;
namespace nn = lockstep::nn;

constexpr double kEps = 1e-5;

struct Layer {
  at::Tensor input, gradient, weight, bias, running_mean, running_var, batches;
};

Layer make_layer(std::int64_t batch, std::int64_t channels, std::int64_t side, at::TensorOptions options,
                 at::MemoryFormat format) {
  const auto own = options.dtype(at::kFloat);
  const auto map = [&] { return at::randn({batch, channels, side, side}, options).contiguous(format); };
  return {map(),
          map(),
          at::ones({channels}, own),
          at::zeros({channels}, own),
          at::zeros({channels}, own),
          at::ones({channels}, own),
          at::zeros({}, own.dtype(at::kLong))};
}

// One rank's work. The gathered messages are its own, as in a world of one.
void ours(const Layer& layer) {
  const auto& [x, dy, weight, bias, mean, var, batches] = layer;
  const auto message = nn::message_of(nn::channel_moments(x), nn::values_per_channel(x));
  const auto s = nn::merge(message.view({1, -1}), kEps, {mean, var, batches, 0.1, true});
  nn::normalised(x, weight, bias, s.moments, s.invstd, kEps);
  const auto own = nn::gradient_sums(dy, x, weight, s.moments.mean, s.invstd);
  nn::input_gradient(dy, x, weight, s.moments.mean, s.invstd, own.sums, s.counts);
}

// The sequence of Python's torch.nn.SyncBatchNorm, without Python.
void pytorchs(const Layer& layer) {
  const auto& [x, dy, weight, bias, running_mean, running_var, batches] = layer;
  const auto [mean, invstd] = at::batch_norm_stats(x, kEps);
  const auto count = at::full({1}, x.numel() / x.size(1), mean.options());
  const auto all = at::cat({mean, invstd, count}).view({1, -1});
  batches.add_(1);
  const auto channels = x.size(1);
  const auto counts = all.narrow(1, 2 * channels, 1).view({-1});
  const auto [m, s] = at::batch_norm_gather_stats_with_counts(
      x, all.narrow(1, 0, channels), all.narrow(1, channels, channels), running_mean, running_var, 0.1, kEps, counts);
  at::batch_norm_elemt(x, weight, bias, m, s, kEps);
  const auto [sum, product, dw, db] = at::batch_norm_backward_reduce(dy, x, m, s, weight, true, true, true);
  const auto sums = at::cat({sum, product});
  at::batch_norm_backward_elemt(dy, x, m, s, weight, sums.narrow(0, 0, channels), sums.narrow(0, channels, channels),
                                counts.to(at::kInt));
}

void plain(const Layer& layer) {
  const auto& [x, dy, weight, bias, mean, var, batches] = layer;
  if (x.is_cuda()) {
    const auto [y, m, s, reserve] = at::cudnn_batch_norm(x, weight, bias, mean, var, true, 0.1, kEps);
    at::cudnn_batch_norm_backward(x, dy, weight, mean, var, m, s, kEps, reserve);
    return;
  }
  const auto [y, m, s] = at::native_batch_norm(x, weight, bias, mean, var, true, 0.1, kEps);
  at::native_batch_norm_backward(dy, x, weight, mean, var, m, s, true, kEps, {true, true, true});
}

double microseconds(const std::function<void()>& work, int times, bool cuda) {
  const auto settle = [&] {
    if (cuda) {
      torch::cuda::synchronize();
    }
  };
  settle();
  const auto begin = Clock::now();
  for (int i = 0; i < times; ++i) {
    work();
  }
  settle();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / times;
}

/// Medians of several turns, each work in each turn.
std::vector<double> in_turns(const std::vector<std::function<void()>>& works, int times, bool cuda) {
  constexpr int kTurns = 7;
  std::vector<std::array<double, kTurns>> all(works.size());
  for (const auto& work : works) {
    microseconds(work, 2, cuda);
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (std::size_t w = 0; w < works.size(); ++w) {
      all[w][static_cast<std::size_t>(turn)] = microseconds(works[w], times, cuda);
    }
  }
  std::vector<double> medians;
  for (auto& turns : all) {
    std::sort(turns.begin(), turns.end());
    medians.push_back(turns[kTurns / 2]);
  }
  return medians;
}

void run(const Layer& layer, const char* name, int times) {
  const bool cuda = layer.input.is_cuda();
  std::vector<std::function<void()>> works{[&] { ours(layer); }, [&] { plain(layer); }};
  if (cuda) {
    works.emplace_back([&] { pytorchs(layer); });
  }
  const auto t = in_turns(works, times, cuda);
  std::printf("%-14s %4ld x %4ld x %3ld^2 %10.1f us  BatchNorm x %.2f", name, static_cast<long>(layer.input.size(0)),
              static_cast<long>(layer.input.size(1)), static_cast<long>(layer.input.size(2)), t[0], t[0] / t[1]);
  if (cuda) {
    std::printf("  PyTorch's calls x %.2f", t[0] / t[2]);
  }
  std::printf("\n");
}

void run_all(bool cuda) {
  const auto device = at::TensorOptions(cuda ? at::kCUDA : at::kCPU);
  const std::array<std::array<std::int64_t, 2>, 7> shapes{
      {{64, 112}, {64, 56}, {256, 56}, {128, 28}, {512, 28}, {1024, 14}, {2048, 7}}};
  for (const auto dtype : cuda ? std::vector{at::kFloat, at::kHalf} : std::vector{at::kFloat}) {
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      const std::string name = std::string(dtype == at::kHalf ? "fp16 " : "fp32 ") +
                               (format == at::MemoryFormat::Contiguous ? "NCHW" : "NHWC");
      for (const auto& [channels, side] : shapes) {
        run(make_layer(cuda ? 64 : 4, channels, side, device.dtype(dtype), format), name.c_str(), cuda ? 20 : 3);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const at::NoGradGuard no_grad;
  run_all(argc > 1 ? std::string_view(argv[1]) == "cuda" : torch::cuda::is_available());
}
