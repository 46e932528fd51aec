// SPDX-License-Identifier: Apache-2.0
// Do replicas stay the same at every opt level? After the public report "Parameters do not properly sync across
// processes when combining DDP and AMP with opt level O2", with its model and its probe: rank 0's input goes through
// every rank's model, and the outputs are compared with rank 0's.
//
//   $ lockstep run -n 2 opt_level_sync --opt-level O2
//   [0] --- output differences to rank 0's model, at step 0 ---
//   [0] rank 0: out_diff=0.0000
//   [0] rank 1: out_diff=0.0000
//   [0] --- output differences to rank 0's model, after 500 steps ---
//   [0] rank 0: out_diff=0.0000
//   [0] rank 1: out_diff=0.0000
//   [0] RESULT max_diff=0 digests_equal=true
//
// The differences of the report were not intended. DistributedDataParallel of that time sent the values that
// state_dict() exports, and O2 made state_dict() export fp32 copies of the 16-bit parameters: what arrived was written
// to copies that nobody used, each rank trained on from its own random start, and, gradients being averages, the
// distance never healed. Lockstep sends the parameters' own storages. `--legacy` does in this file what was done then:
//
//   $ lockstep run -n 2 opt_level_sync --opt-level O2 --legacy
//   [0] --- output differences to rank 0's model, at step 0 ---
//   [0] rank 0: out_diff=0.0000
//   [0] rank 1: out_diff=0.2729
//   ...
//   [0] digest check: parameter 0.weight differs from rank 0 on rank 1 at [0, 0]: -0.022827
//       (0xbcbb) instead of -0.013794 (0xbc62); there is no majority: either may be the faulty one
//   [0] RESULT max_diff=0.272929 digests_equal=false
#include <ATen/ATen.h>
#include <lockstep/amp/opt_level.h>
#include <lockstep/comm/launch.h>
#include <lockstep/ddp/data_parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "support/arguments.h"
#include "support/output.h"

namespace nn = torch::nn;
namespace amp = lockstep::amp;
using Ddp = lockstep::DistributedDataParallel<nn::Sequential>;

namespace {

constexpr int kInputs = 128;
constexpr int kHidden = 512;
constexpr int kOutputs = 128;

struct Settings {
  amp::OptLevel opt_level = amp::OptLevel::O1;
  int steps = 500;
  bool legacy = false;
};

// The old fault. At O0 and O1 `exported` is the parameter itself, which is why those levels seemed to work.
void broadcast_exported_copies(const lockstep::World& world, nn::Sequential& model) {
  for (const auto& parameter : model->parameters()) {
    const auto exported = parameter.detach().to(at::kFloat);
    world.broadcast(exported).wait();
  }
}

Ddp wrap(const lockstep::World& world, nn::Sequential& model, bool legacy) {
  if (!legacy) {
    return Ddp(model, world);
  }
  broadcast_exported_copies(world, model);
  return Ddp(model, world, {.init_sync = false});
}

// Prints each rank's mean absolute difference to rank 0's output, and returns the largest.
double probe(const lockstep::World& world, const amp::Amp& amp, nn::Sequential& model, const std::string& when) {
  const at::NoGradGuard no_grad;
  const auto input = at::randn({16, kInputs}).to(world.device());
  world.broadcast(input).wait();
  const auto output = amp.forward(model, input);
  const auto baseline = output.clone();
  world.broadcast(baseline).wait();
  const auto difference = (output - baseline).abs().mean().to(at::kDouble);

  const auto texts = world.all_gather_text("out_diff=" + examples::decimal(difference.item<double>(), 4));
  if (world.rank() == 0) {
    std::printf("--- output differences to rank 0's model, %s ---\n", when.c_str());
    examples::print_by_rank(texts);
  }
  world.all_reduce(difference, lockstep::ReduceOp::Max).wait();
  return difference.item<double>();
}

void train(const lockstep::World& world, amp::Amp& amp, Ddp& ddp, torch::optim::Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    const auto input = at::randn({16, kInputs}).to(world.device());
    const auto target = at::randn({16, kOutputs}).to(world.device());
    amp.scale(at::mse_loss(amp.forward(ddp, input), target)).backward();
    amp.step(optimizer);
  }
}

void run(const lockstep::World& world, const Settings& settings) {
  // Equal seeds would hide what this program is about: ranks draw their own weights and data.
  at::manual_seed(1234 + static_cast<std::uint64_t>(world.rank()));
  nn::Sequential model(nn::Linear(kInputs, kHidden), nn::ReLU(), nn::Linear(kHidden, kOutputs));
  model->to(world.device());
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  auto amp = amp::initialize(*model, optimizer, settings.opt_level);
  auto ddp = wrap(world, model, settings.legacy);

  const double before = probe(world, amp, model, "at step 0");
  train(world, amp, ddp, optimizer, settings.steps);
  const double after = probe(world, amp, model, "after " + std::to_string(settings.steps) + " steps");
  const auto difference = ddp.difference();  // of all bits, through the replicas' digests
  if (world.rank() != 0) {
    return;
  }
  if (!difference.empty()) {
    std::printf("digest check: %s\n", difference.c_str());
  }
  std::printf("RESULT max_diff=%g digests_equal=%s\n", std::max(before, after), difference.empty() ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Compares the replicas' outputs before and after training, at any opt level.");
  app.option_defaults()->always_capture_default();
  examples::add_opt_level(app, settings.opt_level);
  app.add_option("--steps", settings.steps, "training steps")->check(CLI::NonNegativeNumber);
  app.add_flag("--legacy", settings.legacy, "broadcast exported copies instead of the parameters, as was done in 2020");
  if (const auto code = examples::parse(app, argc, argv)) {
    return *code;
  }
  return lockstep::run_main([&](lockstep::World& world) { run(world, settings); });
}
