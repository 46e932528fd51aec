// SPDX-License-Identifier: Apache-2.0
// One rank goes wrong in the middle of training, and the replica check says which, where and when; then everything is
// copied from a healthy rank and training goes on. Without the check the loss falls as before and nobody notices.
//
//   $ lockstep run -n 3 replica_drift --fault bit
//   [0] after step 12 rank 1 flips one bit of 2.weight
//   [0] replicas differ at step 15: parameter 2.weight differs from rank 0 on rank 1 at [0, 5]:
//       0.075975731 (0x3d9b992a) instead of 0.0798808113 (0x3da3988d)
//   [0]   everything was copied from rank 0
//   [0] RESULT found_at=15 kind=parameter rank=1 equal_afterwards=true
//
// `--fault stale` puts a weight back that is six steps old, as a lost copy would; `--fault lr` lets the rank's schedule
// run ahead. The learning rate is named first then, before the moments and weights that it has spoiled:
//
//   $ lockstep run -n 3 replica_drift --fault lr
//   [0] after step 12 rank 1 sets another learning rate
//   [0] replicas differ at step 15: learning rate group 0 differs from rank 0 on rank 1 at []:
//       0.0050000000000000001 (0x3f747ae147ae147b) instead of 0.01 (0x3f847ae147ae147b)
//   [0]   parameter 0.weight differs from rank 0 on rank 1 at [0, 0]: 0.311228514 (0x3e9f5958) instead of
//       0.325947911 (0x3ea6e2a5)
//   ...
//   [0] RESULT found_at=15 kind=learning_rate rank=1 equal_afterwards=true
#include <ATen/ATen.h>
#include <lockstep/comm/launch.h>
#include <lockstep/ddp/data_parallel.h>
#include <lockstep/optim/adam.h>
#include <lockstep/replica/replica_check.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "support/arguments.h"

namespace nn = torch::nn;

namespace {

constexpr int kSteps = 24;
constexpr int kFaultAfter = 12;
constexpr int kStaleSince = 6;
constexpr int kEvery = 5;

struct Settings {
  std::string fault = "bit";
  int rank = 1;
};

void flip_a_bit(const at::Tensor& weight) {
  auto values = weight.detach().cpu().contiguous();
  auto* bits = static_cast<std::uint32_t*>(values.mutable_data_ptr());
  bits[5] ^= 1U << 20;
  weight.detach().copy_(values);
}

class Drift {
 public:
  Drift(const lockstep::World& world, nn::Sequential& model, torch::optim::Optimizer& optimizer, Settings settings)
      : world_(world), weight_(model->named_parameters()["2.weight"]), optimizer_(optimizer), settings_(settings) {}

  /// To be called after every step.
  void operator()(int step) {
    if (step == kStaleSince) {
      stale_ = weight_.detach().clone();
    }
    if (step == kFaultAfter) {
      announce();
      if (world_.rank() == settings_.rank) {
        strike();
      }
    }
  }

 private:
  void announce() const {
    if (world_.rank() == 0) {
      const auto* what = settings_.fault == "bit"     ? "flips one bit of 2.weight"
                         : settings_.fault == "stale" ? "puts back a stale copy of 2.weight"
                                                      : "sets another learning rate";
      std::printf("after step %d rank %d %s\n", kFaultAfter, settings_.rank, what);
    }
  }

  void strike() {
    if (settings_.fault == "bit") {
      flip_a_bit(weight_);
    } else if (settings_.fault == "stale") {
      weight_.detach().copy_(stale_);
    } else {
      auto& options = optimizer_.param_groups()[0].options();
      options.set_lr(options.get_lr() / 2);
    }
  }

  lockstep::World world_;
  at::Tensor weight_;
  at::Tensor stale_;
  torch::optim::Optimizer& optimizer_;
  Settings settings_;
};

void print(const lockstep::ReplicaReport& report, bool equal_afterwards) {
  const auto& first = report.differences.at(0);
  std::string kind = lockstep::to_string(first.kind);
  std::replace(kind.begin(), kind.end(), ' ', '_');
  std::printf("%s\nRESULT found_at=%d kind=%s rank=%d equal_afterwards=%s\n", report.text().c_str(),
              static_cast<int>(report.step), kind.c_str(), first.ranks.at(0), equal_afterwards ? "true" : "false");
}

void train(lockstep::World& world, const Settings& settings) {
  at::manual_seed(static_cast<std::uint64_t>(world.rank()));
  nn::Sequential model(nn::Linear(8, 16), nn::Tanh(), nn::Linear(16, 1));
  model->to(world.device());
  lockstep::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  lockstep::DistributedDataParallel ddp(model, world);

  lockstep::ReplicaCheck check(world, {.every = kEvery, .on_mismatch = lockstep::OnMismatch::Resync});
  check.attach(ddp).attach(optimizer);
  Drift drift(world, model, optimizer, settings);
  for (int step = 1; step <= kSteps; ++step) {
    const auto input = at::randn({32, 8}).to(world.device());
    at::mse_loss(ddp.forward(input), input.sum(1, true)).backward();
    optimizer.step();
    optimizer.zero_grad();
    drift(step);
    check.step();
  }

  const auto difference = ddp.difference();
  if (world.rank() == 0 && check.last_report()) {
    print(*check.last_report(), difference.empty());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Lets one rank drift on purpose, and shows what the replica check says.");
  app.option_defaults()->always_capture_default();
  app.add_option("--fault", settings.fault, "what goes wrong")->check(CLI::IsMember({"bit", "stale", "lr"}));
  app.add_option("--rank", settings.rank, "where")->check(CLI::NonNegativeNumber);
  if (const auto code = examples::parse(app, argc, argv)) {
    return *code;
  }
  return lockstep::run_main([&](lockstep::World& world) { train(world, settings); });
}
