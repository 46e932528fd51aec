// SPDX-License-Identifier: Apache-2.0
// Replicas on several devices: equal to each other bit by bit, captured or not, and to one process on the joined batch.
#include <torch/nn/utils/clip_grad.h>

#include <cstdlib>
#include <limits>

#include "devices/training.h"
#include "lockstep/replica/replica_check.h"
#include "support/process_ranks.h"

namespace lockstep {
namespace {

using namespace lockstep::test;

constexpr int kDeviceSteps = 20;
constexpr int kOverflowAt = 7;

ReplicaCheck check_of(DeviceTraining& training) {
  ReplicaCheck check(training.world, {.buffers = CheckedBuffers::All});
  check.attach(training.ddp).attach(training.optimizer).attach(training.mixed);
  return check;
}

/// Parameters after training from another seed on each rank, with an overflow on the last one.
std::vector<at::Tensor> trained(const World& world, amp::OptLevel level, bool capture) {
  const auto rank = static_cast<std::uint64_t>(world.rank());
  DeviceTraining training(world, {.level = level, .capture = capture, .seed = 1 + rank});
  for (int i = 0; i < kDeviceSteps; ++i) {
    const bool overflows = i == kOverflowAt && world.rank() == world.size() - 1;
    const auto result = training.feed(i, overflows ? std::numeric_limits<double>::infinity() : 1);
    EXPECT_TRUE(i != kOverflowAt || result.skipped()) << amp::to_string(level);
  }
  auto check = check_of(training);
  check.compare();
  EXPECT_FALSE(check.verdict()) << amp::to_string(level);
  return values_of(training.net.parameters());
}

int train_at_every_level(World& world) {
  for (const auto level : {amp::OptLevel::O1, amp::OptLevel::O2}) {
    const auto eager = trained(world, level, false);
    expect_equal(trained(world, level, true), eager, amp::to_string(level));
  }
  return verdict_of_test();
}
const RankProgram kEveryLevel("devices_every_level", train_at_every_level);

int train_beside_one(World& world) {
  DeviceTraining ours(world, {.level = amp::OptLevel::O0});
  NormedMlp joined(1, World());
  joined.to(world.device());
  optim::AdamW optimizer(joined.parameters(), torch::optim::AdamWOptions(0.01));
  const auto rows = kRowsPerRank * world.size();
  for (int i = 0; i < kDeviceSteps; ++i) {
    ours.feed(i);
    const auto x = inputs_of(i, rows).to(world.device());
    squared_error(joined.forward(x), targets_of(i, rows).to(world.device())).backward();
    torch::nn::utils::clip_grad_norm_(joined.parameters(), 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  expect_equal(values_of(ours.net.parameters()), values_of(joined.parameters()), "joined batch", 2e-4);
  expect_equal(values_of(ours.net.buffers()), values_of(joined.buffers()), "running statistics", 2e-4);
  return verdict_of_test();
}
const RankProgram kBesideOne("devices_beside_one", train_beside_one);

int find_a_flipped_bit(World& world) {
  DeviceTraining training(world, {});
  training.feed(0);
  if (world.rank() == 1) {
    const at::NoGradGuard no_grad;
    training.net.last->bias[1] += 0.5;
  }
  auto check = check_of(training);
  try {
    check.compare();
    check.verdict();
    ADD_FAILURE() << "found nothing";
  } catch (const ReplicaError& error) {
    EXPECT_EQ(error.report().differences.at(0).name, "last.bias");
  }
  return verdict_of_test();
}
const RankProgram kFlippedBit("devices_flipped_bit", find_a_flipped_bit);

/// LOCKSTEP_CHECK_EVERY in a program without a ReplicaCheck: replays are watched as eager steps are.
int watch_without_a_change_of_code(World& world) {
  ::setenv("LOCKSTEP_CHECK_EVERY", "1", 1);
  for (const bool capture : {false, true}) {
    DeviceTraining training(world, {.level = amp::OptLevel::O0, .capture = capture});
    for (int i = 0; i < 6; ++i) {
      training.feed(i);
    }
    if (world.rank() == 1) {
      const at::NoGradGuard no_grad;
      training.net.last->bias[1] += 0.5;
    }
    const auto go_on = [&] {
      for (int i = 6; i < 9; ++i) {
        training.feed(i);
      }
    };
    EXPECT_THROW(go_on(), ReplicaError) << training.step.describe();
  }
  return verdict_of_test();
}
const RankProgram kWatched("devices_watched", watch_without_a_change_of_code);

void expect_passes(const std::string& program) {
  ProcessRanks ranks({.program = program, .size = device_ranks()});
  for (const auto& end : ranks.finish(std::chrono::seconds(120))) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
  }
}

TEST(Devices, replicas_are_equal_and_replays_equal_eager_steps) {
  expect_passes("devices_every_level");
}

TEST(Devices, training_equals_one_process_on_the_joined_batch) {
  expect_passes("devices_beside_one");
}

TEST(Devices, the_environment_turns_checks_on_captured_or_not) {
  expect_passes("devices_watched");
}

TEST(Devices, a_flipped_bit_is_found) {
  expect_passes("devices_flipped_bit");
}

}  // namespace
}  // namespace lockstep
