// SPDX-License-Identifier: Apache-2.0
// Ranks as processes that train one model, one of which exits, throws, is killed or stopped, skips a step, or is given
// a batch of another shape: all others end soon and say what became of it. Fit for many repeats:
//
//   test_ddp_procs --gtest_repeat=50 --gtest_throw_on_failure
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <csignal>

#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"
#include "support/process_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::ProcessRanks;
using test::RankEnd;

constexpr auto kEndsWithin = 20s;
constexpr int kRanks = 3;
constexpr int kOddRank = 1;
constexpr int kOddStep = 12;

struct FailsInBackward : torch::autograd::Function<FailsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list /*gradients*/) {
    throw std::runtime_error("the sensor sent nonsense");
  }
};

enum class Odd { Nothing, Exits, Throws, SkipsAStep, GetsAnotherShape };

/// Trains until something happens. The odd rank does its thing at the odd step.
void train_until(World& world, Odd odd, int last = 1 << 30) {
  auto net = test::mlp(static_cast<std::uint64_t>(world.rank()));
  DistributedDataParallel ddp(net, world, {.bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4});
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
  for (int step = 0; step < last; ++step) {
    const bool now = world.rank() == kOddRank && step == kOddStep;
    if (now && odd == Odd::Exits) {
      ::_exit(3);
    }
    if (now && odd == Odd::SkipsAStep) {
      continue;
    }
    sgd.zero_grad();
    const auto x = test::random({2, now && odd == Odd::GetsAnotherShape ? 7 : 6}, static_cast<std::uint64_t>(step));
    const auto y = ddp(x);
    (now && odd == Odd::Throws ? FailsInBackward::apply(y) : y).square().mean().backward();
    sgd.step();
    if (step % 10 == 0) {
      test::say("step " + std::to_string(step) + ".");
    }
  }
}

template <Odd odd>
int train_with(World& world) {
  train_until(world, odd);
  return 0;
}

/// A rank that leaves out a step is a batch behind from then on, and misses at the end of the epoch.
int skip_a_step(World& world) {
  train_until(world, Odd::SkipsAStep, 40);
  return 0;
}

int train_to_the_end(World& world) {
  train_until(world, Odd::Nothing, 11);
  return 0;
}

const test::RankProgram kPlain("ddp_nothing", train_with<Odd::Nothing>);
const test::RankProgram kEnds("ddp_to_the_end", train_to_the_end);
const test::RankProgram kDdpExits("ddp_exits", train_with<Odd::Exits>);
const test::RankProgram kDdpThrows("ddp_throws", train_with<Odd::Throws>);
const test::RankProgram kDdpSkips("ddp_skips", skip_a_step);
const test::RankProgram kDdpShape("ddp_shape", train_with<Odd::GetsAnotherShape>);

void expect_all_said(const std::vector<RankEnd>& ends, const std::vector<std::string>& parts) {
  for (const auto& end : ends) {
    EXPECT_FALSE(end.hung) << "rank " << end.rank << " hung";
    EXPECT_EQ(end.exit_code, 1) << "rank " << end.rank;
    for (const auto& part : parts) {
      EXPECT_TRUE(end.said(part)) << "rank " << end.rank << ": " << end.output;
    }
  }
}

void expect_ends_saying(const std::string& program, const std::vector<std::string>& parts,
                        const std::vector<int>& who = {}) {
  ProcessRanks ranks({.program = program, .size = kRanks});
  ranks.await(kOddRank, "step 10.");
  expect_all_said(ranks.finish(kEndsWithin, who), parts);
}

TEST(DdpFaults, none_ends_in_peace) {
  ProcessRanks ranks({.program = "ddp_to_the_end", .size = kRanks});
  for (const auto& end : ranks.finish(60s)) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
  }
}

TEST(DdpFaults, exit) {
  expect_ends_saying("ddp_exits", {"[world] rank 1 is gone: its process"}, {0, 2});
}

TEST(DdpFaults, throw_in_backward) {
  expect_ends_saying("ddp_throws", {"[rank 1] the sensor sent nonsense"});
}

TEST(DdpFaults, batch_of_another_shape) {
  expect_ends_saying("ddp_shape", {"[rank 1] ", "mat1 and mat2 shapes cannot be multiplied (2x7 and 6x10)"});
}

TEST(DdpFaults, skipped_step) {
  expect_ends_saying("ddp_skips", {"[world] rank 1 left after ", "'gradient bucket 0'"}, {0, 2});
}

TEST(DdpFaults, kill) {
  ProcessRanks ranks({.program = "ddp_nothing", .size = kRanks});
  ranks.await(0, "step 10.");
  ranks.signal(kOddRank, SIGKILL);
  expect_all_said(ranks.finish(kEndsWithin, {0, 2}), {"[world] rank 1 is gone: its process"});
}

TEST(DdpFaults, stop) {
  ProcessRanks ranks(
      {.program = "ddp_nothing", .size = kRanks, .environment = {{"LOCKSTEP_HEARTBEAT_TIMEOUT_S", "2"}}});
  ranks.await(0, "step 10.");
  ranks.signal(kOddRank, SIGSTOP);
  expect_all_said(ranks.finish(kEndsWithin, {0, 2}), {"[world] rank 1 has sent no heartbeat for 2 s"});
}

}  // namespace
}  // namespace lockstep
