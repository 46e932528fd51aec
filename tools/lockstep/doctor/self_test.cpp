// SPDX-License-Identifier: Apache-2.0
#include "lockstep/doctor/self_test.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

#include "core/check.h"
#include "lockstep/amp/opt_level.h"
#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/optim/adam.h"
#include "lockstep/step/train_step.h"

namespace lockstep::doctor {
namespace {

using core::str;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kElements = 1 << 20;  // 4 MiB of fp32
constexpr int kRounds = 5;
constexpr int kSteps = 30;

/// Findings of all ranks: each rank reports what went wrong on it, rank 0 also what went well.
class Shared {
 public:
  void add(Grade grade, const std::string& text) {
    const std::lock_guard lock(mutex_);
    findings_.push_back({grade, text});
  }
  Findings take() { return std::move(findings_); }

 private:
  std::mutex mutex_;
  Findings findings_;
};

/// Rank r brings r + 1, and element i adds i % 7, so that neither a rank nor a place can go missing unseen.
at::Tensor input_of(const World& world) {
  const auto places = at::arange(kElements, at::TensorOptions(world.device()).dtype(at::kFloat)).remainder_(7);
  return places + (world.rank() + 1);
}

at::Tensor expected_sum(const World& world) {
  const double size = world.size();
  const auto places = at::arange(kElements, at::TensorOptions(world.device()).dtype(at::kFloat)).remainder_(7);
  return places * size + size * (size + 1) / 2;
}

double reduce_once(const World& world, const at::Tensor& tensor) {
  world.barrier();
  const auto begin = Clock::now();
  world.all_reduce(tensor).wait();
  tensor.select(0, 0).item<float>();  // waits for the device
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void check_all_reduce(const World& world, Shared& shared) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto tensor = input_of(world);
    best = std::min(best, reduce_once(world, tensor));
    if (!at::equal(tensor, expected_sum(world))) {
      shared.add(Grade::bad, str("all-reduce gave a wrong sum on rank ", world.rank()));
      return;
    }
  }
  if (world.rank() == 0) {
    const double megabytes = kElements * 4 / 1e6;
    shared.add(Grade::ok, str("all-reduce of 4 MiB over ", world.size(), " ranks: right, ", std::llround(best * 1e6),
                              " us, ", std::llround(megabytes / best), " MB/s"));
  }
}

torch::nn::Sequential make_net(c10::Device device) {
  namespace nn = torch::nn;
  nn::Sequential net(nn::Linear(32, 64), nn::ReLU(), nn::Linear(64, 8));
  net->to(device);
  return net;
}

TrainStep::Inputs make_batch(const World& world) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(world.rank() + 1));
  const auto x = at::randn({16, 32}, generator);
  return {x.to(world.device()), x.narrow(1, 0, 8).tanh().to(world.device())};
}

/// What became of the loss, or why the steps do not count.
struct Trained {
  double first = 0, last = 0;
  std::string how, difference;

  bool learned() const { return std::isfinite(last) && last < first; }
};

Trained train(const World& world, bool capture) {
  auto net = make_net(world.device());
  optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2), {.capturable = capture});
  auto amp = amp::initialize(*net, optimizer, amp::OptLevel::O2);
  DistributedDataParallel ddp(net, world);
  TrainStep step({.optimizer = optimizer, .ddp = &ddp, .amp = &amp},
                 [&](const auto& in) { return at::mse_loss(amp.forward(ddp, in[0]), in[1]); }, {.capture = capture});
  const auto batch = make_batch(world);
  Trained result;
  for (int i = 0; i < kSteps; ++i) {
    const auto loss = step(batch).loss();
    if (i == 0) {
      result.first = loss.item<double>();
    }
    result.last = loss.item<double>();
  }
  result.how = step.describe();
  result.difference = ddp.difference();
  return result;
}

void check_training(const World& world, bool capture, Shared& shared) {
  const auto result = train(world, capture);
  if (world.rank() != 0) {
    return;
  }
  const auto what = str(kSteps, " mixed precision steps", capture ? " (" + result.how + ")" : "");
  if (!result.difference.empty()) {
    shared.add(Grade::bad, str("after ", what, " the replicas differ: ", result.difference));
  } else if (!result.learned()) {
    shared.add(Grade::bad, str(what, " did not learn: the loss went from ", result.first, " to ", result.last));
  } else {
    const bool as_asked = !capture || result.how.starts_with("captured");
    shared.add(as_asked ? Grade::ok : Grade::note, str(what, ": the loss fell from ", result.first, " to ", result.last,
                                                       ", replicas are equal bit for bit"));
  }
}

WorldOptions test_options(c10::DeviceType type) {
  WorldOptions options;
  options.timeout = std::chrono::seconds(20);
  if (type == c10::kCPU) {
    options.device = c10::Device(c10::kCPU);
    options.backend = BackendKind::Gloo;
  }
  return options;
}

}  // namespace

Findings self_test(c10::DeviceType type, int ranks) {
  Shared shared;
  const bool cuda = type == c10::kCUDA;
  try {
    run_ranks(
        ranks,
        [&](World& world) {
          check_all_reduce(world, shared);
          check_training(world, false, shared);
          if (cuda) {
            check_training(world, true, shared);
          }
        },
        test_options(type));
  } catch (const std::exception& error) {
    shared.add(Grade::bad, str("the test on ", cuda ? "CUDA" : "the CPU", " ended with: ", error.what()));
  }
  return shared.take();
}

}  // namespace lockstep::doctor
