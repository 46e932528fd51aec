// SPDX-License-Identifier: Apache-2.0
// A whole training step in one call, and on a GPU the whole step as one graph: the same small model is trained twice,
// eagerly and captured, and both must end with the same weights. On a CPU the second run says why it stays eager.
//
//   $ lockstep run -n 2 train_step
//   [0] eager:    eager, 300 steps, loss 1.069 -> 0.000
//   [0] captured: eager: the parameters are on cpu, only CUDA steps can be captured, 300 steps, loss 1.069 -> 0.000
//   [0] RESULT loss=0.0000 speedup=1.2 equal=true
#include <ATen/ATen.h>
#include <lockstep/amp/opt_level.h>
#include <lockstep/comm/launch.h>
#include <lockstep/ddp/data_parallel.h>
#include <lockstep/optim/adam.h>
#include <lockstep/step/train_step.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "support/output.h"

namespace {

constexpr int kSteps = 300;
constexpr int kBatch = 16;

struct Outcome {
  std::string how;
  double first_loss = 0;
  double last_loss = 0;
  double seconds = 0;
  std::uint64_t digest = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Outcome train(lockstep::World& world, bool capture) {
  at::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(128, 512), torch::nn::ReLU(), torch::nn::Linear(512, 128));
  net->to(world.device());
  lockstep::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3),
                                   {.capturable = world.device().is_cuda()});
  // fp16 and a loss scale on a GPU; CPUs are at home with bf16.
  const auto low = world.device().is_cuda() ? at::kHalf : at::kBFloat16;
  auto amp = lockstep::amp::initialize(*net, optimizer, lockstep::amp::OptLevel::O2, {.low_precision = low});
  lockstep::DistributedDataParallel ddp(net, world);

  lockstep::TrainStep step({.optimizer = optimizer, .ddp = &ddp, .amp = &amp},
                           [&](const auto& in) { return at::mse_loss(amp.forward(net, in[0]), in[1]); },
                           {.clip_norm = 1.0, .capture = capture});

  at::manual_seed(100 + static_cast<std::uint64_t>(world.rank()));
  const auto x = at::randn({kBatch, 128}).to(world.device());
  const auto y = at::randn({kBatch, 128}).to(world.device());
  Outcome outcome;
  std::chrono::steady_clock::time_point start;
  for (int i = 0; i < kSteps; ++i) {
    const auto result = step({x, y});
    if (i == 0 || i + 1 == kSteps) {
      (i == 0 ? outcome.first_loss : outcome.last_loss) = result.loss().item<double>();
    }
    if (i == kSteps / 10) {
      start = std::chrono::steady_clock::now();  // graphs are recorded by now
    }
  }
  outcome.seconds = seconds_since(start);
  outcome.how = step.describe();
  outcome.digest = ddp.digest();
  return outcome;
}

void run(lockstep::World& world) {
  const auto eager = train(world, false);
  const auto captured = train(world, true);
  if (world.rank() != 0) {
    return;
  }
  const auto tell = [](const char* name, const Outcome& o) {
    std::printf("%-9s %s, %d steps, loss %.3f -> %.3f\n", name, o.how.c_str(), kSteps, o.first_loss, o.last_loss);
  };
  tell("eager:", eager);
  tell("captured:", captured);
  std::printf("RESULT loss=%.4f speedup=%.1f equal=%s\n", captured.last_loss, eager.seconds / captured.seconds,
              eager.digest == captured.digest ? "true" : "false");
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
