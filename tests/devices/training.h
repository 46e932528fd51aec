// SPDX-License-Identifier: Apache-2.0
// A training step on every device: a small model with SyncBatchNorm, as ranks as processes run it.
#pragma once

#include <torch/cuda.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "lockstep/amp/opt_level.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/optim/adam.h"
#include "lockstep/step/train_step.h"
#include "step/support.h"

namespace lockstep::test {

constexpr std::int64_t kRowsPerRank = 6;

inline int device_ranks() {
  return std::max(2, static_cast<int>(torch::cuda::device_count()));
}

struct NormedMlp : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(4, 64).bias(false)));
  nn::SyncBatchNorm norm;
  torch::nn::Linear last = register_module("last", torch::nn::Linear(64, 2));

  NormedMlp(std::uint64_t seed, const World& world) : norm(register_module("norm", nn::SyncBatchNorm(64, world))) {
    fill_parameters(parameters(), seed, 0.5);
  }
  at::Tensor forward(const at::Tensor& x) { return last(norm(first(x)).relu().to(last->weight.scalar_type())); }
};

struct DeviceSetting {
  amp::OptLevel level = amp::OptLevel::O2;
  bool capture = false;
  std::uint64_t seed = 1;
};

/// Everything that trains on this rank's device. What is captured needs NCCL.
struct DeviceTraining {
  const World& world;
  NormedMlp net;
  optim::AdamW optimizer;
  amp::Amp mixed;
  DistributedDataParallel<NormedMlp> ddp;
  TrainStep step;

  DeviceTraining(const World& on, const DeviceSetting& setting)
      : world(on),
        net(setting.seed, world.size() > 1 ? world.split(0, world.rank()) : World()),
        optimizer(placed(), torch::optim::AdamWOptions(0.01), {.capturable = true}),
        mixed(amp::initialize(net, optimizer, setting.level)),
        ddp(net, world),
        step({.optimizer = optimizer, .ddp = &ddp, .amp = &mixed},
             [this](const TrainStep::Inputs& in) { return squared_error(mixed.forward(ddp, in[0]), in[1]); },
             {.clip_norm = 0.5,
              .capture = setting.capture,
              .require_capture = setting.capture && world.backend() == BackendKind::Nccl}) {}

  /// One step on this rank's rows of batch `index`.
  TrainStepResult feed(int index, double times = 1) {
    const auto rows = kRowsPerRank * world.size();
    const auto mine = [&](const at::Tensor& all) { return share(all, world.rank(), kRowsPerRank).to(world.device()); };
    return step({mine(inputs_of(index, rows)) * times, mine(targets_of(index, rows))});
  }

 private:
  std::vector<at::Tensor> placed() {
    net.to(world.device());
    return net.parameters();
  }
};

/// What a rank's program returns: 3 where an expectation has failed.
inline int verdict_of_test() {
  return testing::UnitTest::GetInstance()->Failed() ? 3 : 0;
}

}  // namespace lockstep::test
