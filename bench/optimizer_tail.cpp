// SPDX-License-Identifier: Apache-2.0
// What comes after backward: gradient norm, clipping, AdamW update. One line a case.
//
//   bench_optimizer_tail            CPU: beside torch::optim::AdamW and ATen's fused kernel, in turns in one run
//                                   CUDA, where there is a device: picoseconds a parameter, fp16 with fp32 masters
//   bench_optimizer_tail cpu|cuda   only these
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string_view>
#include <vector>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip_grad.h"

namespace {

using Tensors = std::vector<at::Tensor>;
using Clock = std::chrono::steady_clock;
using torch::optim::AdamWOptions;

constexpr int kRepeats = 9;

double seconds(const std::function<void()>& work, int times) {
  const auto begin = Clock::now();
  for (int i = 0; i < times; ++i) {
    work();
  }
  return std::chrono::duration<double>(Clock::now() - begin).count() / times;
}

struct Spread {
  double low, median, high;
};

Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

/// `count` tensors of `size` elements with gradients, each memory of its own.
Tensors strays(int count, std::int64_t size) {
  Tensors tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(at::randn({size}).requires_grad_());
    tensors.back().mutable_grad() = at::randn({size});
  }
  return tensors;
}

/// The same as neighbours in one arena of parameters and one of gradients.
Tensors arena(int count, std::int64_t size, at::TensorOptions options) {
  const auto weights = at::randn({count * size}, options).mul_(0.02);
  const auto gradients = at::randn({count * size}, options);
  Tensors tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(weights.narrow(0, i * size, size).detach().requires_grad_());
    tensors.back().mutable_grad() = gradients.narrow(0, i * size, size);
  }
  return tensors;
}

/// Python's fused AdamW: ATen's kernel, called with lists.
struct AtenFused {
  Tensors parameters, gradients, first, second, steps;

  explicit AtenFused(const Tensors& from) : parameters(from) {
    for (const auto& p : parameters) {
      gradients.push_back(p.grad());
      first.push_back(at::zeros_like(p, at::TensorOptions().requires_grad(false)));
      second.push_back(first.back().clone());
      steps.push_back(at::zeros({}));
    }
  }

  void step() {
    const at::NoGradGuard no_grad;
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, first, second, {}, steps, 1e-3, 0.9, 0.999, 1e-2, 1e-8, false, false);
  }
};

/// Rounds of all rivals in turn, so that a busy machine is busy for each of them.
void cpu_case(const char* name, int count, std::int64_t size, const Tensors& ours, int times) {
  lockstep::optim::AdamW fused(ours);
  torch::optim::AdamW stock(strays(count, size));
  AtenFused aten(strays(count, size));
  const std::vector<std::function<void()>> rivals{[&] { fused.step(); }, [&] { stock.step(); }, [&] { aten.step(); }};
  std::vector<double> mine, over_stock, over_aten;
  for (int round = -1; round < kRepeats; ++round) {
    std::vector<double> took;
    for (const auto& rival : rivals) {
      took.push_back(seconds(rival, times));
    }
    if (round >= 0) {
      mine.push_back(took[0]);
      over_stock.push_back(took[1] / took[0]);
      over_aten.push_back(took[2] / took[0]);
    }
  }
  const auto [low, median, high] = spread(mine);
  const auto stock_ratio = spread(over_stock);
  const auto aten_ratio = spread(over_aten);
  std::printf(
      "cpu  %-22s %d threads: %8.3f ms (%.3f-%.3f), torch::optim %5.1fx (%.1f-%.1f), ATen fused %4.2fx (%.2f-%.2f)\n",
      name, at::get_num_threads(), median * 1e3, low * 1e3, high * 1e3, stock_ratio.median, stock_ratio.low,
      stock_ratio.high, aten_ratio.median, aten_ratio.low, aten_ratio.high);
}

void cpu_cases(int threads) {
  at::set_num_threads(threads);
  cpu_case("500 x 1000, strays", 500, 1000, strays(500, 1000), 20);
  cpu_case("500 x 1000, arena", 500, 1000, arena(500, 1000, at::kFloat), 20);
  cpu_case("20 x 1000000, strays", 20, 1000000, strays(20, 1000000), 1);
}

void cuda_case(std::int64_t wanted) {
  constexpr int kTensors = 148;
  constexpr double kMaxNorm = 1;
  const auto size = wanted / kTensors / 64 * 64;
  const auto parameters = arena(kTensors, size, at::TensorOptions(at::kCUDA).dtype(at::kHalf));
  lockstep::optim::AdamW optimizer(parameters, AdamWOptions(1e-4), {.master_weights = true});
  const auto scale = at::full({1}, 1024, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  const auto tail = [&] {
    const auto clip = lockstep::optim::clip_factor(parameters, kMaxNorm, {.grad_scale = scale});
    optimizer.step_fused({.grad_scale = scale, .found_inf = clip.found_inf, .clip_factor = clip.factor});
  };
  seconds(tail, 10);
  std::vector<double> picoseconds;
  for (int round = 0; round < kRepeats; ++round) {
    torch::cuda::synchronize();
    const auto begin = Clock::now();
    seconds(tail, 30);
    torch::cuda::synchronize();
    const auto took = std::chrono::duration<double>(Clock::now() - begin).count() / 30;
    picoseconds.push_back(took * 1e12 / static_cast<double>(kTensors * size));
  }
  const bool finite = at::isfinite(optimizer.master(parameters[0])).all().item<bool>();
  const auto [low, median, high] = spread(picoseconds);
  std::printf("cuda norm + clip + AdamW, fp16 with fp32 masters, %11lld parameters: %.2f ps/param (%.2f-%.2f)%s\n",
              static_cast<long long>(kTensors * size), median, low, high, finite ? "" : ", NOT FINITE: does not count");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view only = argc > 1 ? argv[1] : "";
  if (only != "cuda") {
    cpu_cases(1);
    cpu_cases(2);
  }
  if (only != "cpu" && torch::cuda::is_available()) {
    cuda_case(123'000'000);
    cuda_case(1'300'000'000);
  }
  return 0;
}
