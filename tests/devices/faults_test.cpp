// SPDX-License-Identifier: Apache-2.0
// A rank on a device that throws, ends, is killed, is stopped or leaves early, in eager steps and in replays: all
// others end soon and name it.
#include <unistd.h>

#include <csignal>

#include "devices/training.h"
#include "support/process_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using namespace lockstep::test;

constexpr auto kEndsSoon = 15s;
constexpr int kVictim = 1;
constexpr int kFaultAt = 12;

enum class DeviceFault { None, Throws, Exits, Leaves };

template <DeviceFault fault, bool capture>
int train_on_device(World& world) {
  DeviceTraining training(world, {.capture = capture});
  for (int step = 0;; ++step) {
    const bool now = world.rank() == kVictim && step == kFaultAt;
    if (now && fault == DeviceFault::Throws) {
      throw std::runtime_error("the sensor sent nonsense");
    }
    if (now && fault == DeviceFault::Exits) {
      ::_exit(3);
    }
    if (now && fault == DeviceFault::Leaves) {
      return 0;
    }
    if (step % 10 == 0) {
      training.feed(step).loss().item<float>();
      say("step " + std::to_string(step) + ".");
    } else {
      training.feed(step);
    }
  }
}

const RankProgram kEagerGoesOn("devices_goes_on_eager", train_on_device<DeviceFault::None, false>);
const RankProgram kEagerThrows("devices_throws_eager", train_on_device<DeviceFault::Throws, false>);
const RankProgram kEagerExits("devices_exits_eager", train_on_device<DeviceFault::Exits, false>);
const RankProgram kEagerLeaves("devices_leaves_eager", train_on_device<DeviceFault::Leaves, false>);
const RankProgram kReplayGoesOn("devices_goes_on_captured", train_on_device<DeviceFault::None, true>);
const RankProgram kReplayThrows("devices_throws_captured", train_on_device<DeviceFault::Throws, true>);
const RankProgram kReplayExits("devices_exits_captured", train_on_device<DeviceFault::Exits, true>);
const RankProgram kReplayLeaves("devices_leaves_captured", train_on_device<DeviceFault::Leaves, true>);

class DeviceFaults : public testing::TestWithParam<const char*> {
 protected:
  std::string program(const std::string& what) const { return "devices_" + what + "_" + GetParam(); }

  static std::vector<int> others() {
    std::vector<int> ranks;
    for (int rank = 0; rank < device_ranks(); ++rank) {
      if (rank != kVictim) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  static void expect_named(const std::vector<RankEnd>& ends, const std::string& words) {
    for (const auto& end : ends) {
      EXPECT_FALSE(end.hung) << "rank " << end.rank << " hung: " << end.output;
      EXPECT_EQ(end.exit_code, 1) << "rank " << end.rank;
      EXPECT_TRUE(end.said(words)) << "rank " << end.rank << ": " << end.output;
    }
  }

  static ProcessRanks started(const std::string& name) {
    return ProcessRanks(
        {.program = name, .size = device_ranks(), .environment = {{"LOCKSTEP_HEARTBEAT_TIMEOUT_S", "2"}}});
  }
};

TEST_P(DeviceFaults, throw_reaches_all_in_its_own_words) {
  auto ranks = started(program("throws"));
  ranks.await(0, "step 10.");
  expect_named(ranks.finish(kEndsSoon), "[rank 1] the sensor sent nonsense");
}

TEST_P(DeviceFaults, exit_is_named) {
  auto ranks = started(program("exits"));
  ranks.await(0, "step 10.");
  expect_named(ranks.finish(kEndsSoon, others()), "[world] rank 1 is gone: its process");
}

TEST_P(DeviceFaults, rank_that_leaves_early_is_named) {
  auto ranks = started(program("leaves"));
  ranks.await(0, "step 10.");
  expect_named(ranks.finish(kEndsSoon, others()), "[world] rank 1 left after ");
}

TEST_P(DeviceFaults, killed_rank_is_named) {
  auto ranks = started(program("goes_on"));
  ranks.await(0, "step 10.");
  ranks.signal(kVictim, SIGKILL);
  expect_named(ranks.finish(kEndsSoon, others()), "[world] rank 1 is gone: its process");
}

TEST_P(DeviceFaults, stopped_rank_is_named) {
  auto ranks = started(program("goes_on"));
  ranks.await(0, "step 10.");
  ranks.signal(kVictim, SIGSTOP);
  expect_named(ranks.finish(kEndsSoon, others()), "[world] rank 1 has sent no heartbeat for 2 s");
}

INSTANTIATE_TEST_SUITE_P(Steps, DeviceFaults, testing::Values("eager", "captured"));

}  // namespace
}  // namespace lockstep
