// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation with mixed precision, all-reducing only in the iterations that step. After the public example
// "Minimal example of gradient accumulation, allreducing only on step() iterations and interacting properly with
// torch.cuda.amp", with its model, data, numbers and order of calls.
//
// It also answers what readers of that example asked. Does no_sync() save the communication? Yes: the program counts
// the all-reduces with it and without. Does SyncBatchNorm still synchronise its forward under no_sync()? Yes: no_sync()
// concerns gradients only.
//
//   $ lockstep run -n 2 gradient_accumulation
//   [0] with no_sync: 5 all-reduces in 20 iterations
//   [0] without:      20 all-reduces in 20 iterations
//   [0] rank 0: weight sum = 0.91152222896965895, bias sum = 0.050947216834174469
//   [0] rank 1: weight sum = 0.91152222896965895, bias sum = 0.050947216834174469
//   [0] RESULT all_reduces=5 without_no_sync=20 sums_equal=true
#include <ATen/ATen.h>
#include <lockstep/amp/autocast.h>
#include <lockstep/amp/grad_scaler.h>
#include <lockstep/comm/launch.h>
#include <lockstep/ddp/data_parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <optional>
#include <string>

#include "support/output.h"

namespace {

constexpr int kIterations = 20;
constexpr int kItersToAccumulate = 4;
constexpr int kBatch = 64;
constexpr int kInputs = 1024;
constexpr int kOutputs = 16;

struct Outcome {
  std::uint64_t all_reduces = 0;
  std::string parameter_sums;  // of this rank, with all their digits
};

std::string sum_of(const char* name, const at::Tensor& parameter) {
  char text[64];
  std::snprintf(text, sizeof(text), "%s sum = %.17g", name, parameter.sum(at::kDouble).item<double>());
  return text;
}

Outcome train(lockstep::World& world, bool use_no_sync) {
  // Fake data, and a fresh model, which differ between ranks; wrapping makes the models one.
  at::manual_seed(static_cast<std::uint64_t>(world.rank()));
  const auto device = world.device();
  const auto x = at::randn({kBatch, kInputs}).to(device);
  const auto y = at::randn({kBatch, kOutputs}).to(device);

  torch::nn::Linear model(kInputs, kOutputs);
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1e-2));
  lockstep::amp::GradScaler scaler;
  lockstep::DistributedDataParallel ddp(model, world);

  const auto run_forward_backward = [&] {
    at::Tensor loss;
    {
      lockstep::amp::autocast region(device.type());
      // Divided, so that gradients are averages over the accumulated global batch.
      loss = at::mse_loss(ddp.forward(x), y) / kItersToAccumulate;
    }
    scaler.scale(loss).backward();
  };

  for (int t = 0; t < kIterations; ++t) {
    if ((t + 1) % kItersToAccumulate == 0) {
      run_forward_backward();  // sums of four backward passes, averaged over ranks: equal on all of them from here on
      scaler.step(optimizer);
      optimizer.zero_grad();
      scaler.update();  // only where the optimizer has stepped: the scale must not change while gradients add up
    } else {
      const auto quiet = use_no_sync ? std::optional(ddp.no_sync()) : std::nullopt;
      run_forward_backward();  // under no_sync, gradients differ between ranks here
    }
  }
  return {ddp.statistics().all_reduces, sum_of("weight", model->weight) + ", " + sum_of("bias", model->bias)};
}

void run(lockstep::World& world) {
  const auto with = train(world, true);
  const auto without = train(world, false);
  const auto sums = world.all_gather_text(with.parameter_sums);
  if (world.rank() != 0) {
    return;
  }
  const auto count = [](const Outcome& outcome) { return static_cast<unsigned long long>(outcome.all_reduces); };
  std::printf("with no_sync: %llu all-reduces in %d iterations\n", count(with), kIterations);
  std::printf("without:      %llu all-reduces in %d iterations\n", count(without), kIterations);
  examples::print_by_rank(sums);
  std::printf("RESULT all_reduces=%llu without_no_sync=%llu sums_equal=%s\n", count(with), count(without),
              examples::all_equal(sums) ? "true" : "false");
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
