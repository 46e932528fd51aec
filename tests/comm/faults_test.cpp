// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, one of which is killed, stopped, or goes its own way in the middle of training: all others end
// soon, and say which one it was.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "support/process_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::ProcessRanks;
using test::RankEnd;
using test::say;

constexpr auto kLimit = 15s;

void train(const World& world, int first, int last) {
  const auto small = at::ones({10});
  const auto large = at::ones({300000});
  for (int step = first; step < last; ++step) {
    const auto tag = static_cast<std::uint32_t>(step);
    auto work = world.all_reduce(large, ReduceOp::Average, {"large", tag});
    world.all_reduce(small, ReduceOp::Average, {"small", tag}).wait();
    work.wait();
    if (step % 10 == 0) {
      say("step " + std::to_string(step) + ".");
    }
  }
}

int train_for_ever(World& world) {
  train(world, 0, 1 << 30);
  return 0;
}
const test::RankProgram kForEver("train_for_ever", train_for_ever);

int throw_on_rank_2(World& world) {
  train(world, 0, 20);
  if (world.rank() == 2) {
    throw std::runtime_error("the solver diverged");
  }
  train(world, 20, 1 << 30);
  return 0;
}
const test::RankProgram kThrows("throw_on_rank_2", throw_on_rank_2);

int exit_on_rank_2(World& world) {
  train(world, 0, 20);
  if (world.rank() == 2) {
    ::_exit(3);
  }
  train(world, 20, 1 << 30);
  return 0;
}
const test::RankProgram kExits("exit_on_rank_2", exit_on_rank_2);

int return_early_on_rank_2(World& world) {
  train(world, 0, world.rank() == 2 ? 20 : 1 << 30);
  return 0;
}
const test::RankProgram kReturns("return_early_on_rank_2", return_early_on_rank_2);

int skip_a_step_on_rank_2(World& world) {
  train(world, 0, 20);
  train(world, world.rank() == 2 ? 21 : 20, 1 << 30);
  return 0;
}
const test::RankProgram kSkips("skip_a_step_on_rank_2", skip_a_step_on_rank_2);

int other_size_on_rank_2(World& world) {
  train(world, 0, 20);
  world.all_reduce(at::ones({world.rank() == 2 ? 2001 : 2000}), ReduceOp::Sum, {"odd one"}).wait();
  return 0;
}
const test::RankProgram kOtherSize("other_size_on_rank_2", other_size_on_rank_2);

int train_a_little(World& world) {
  train(world, 0, 11);
  return 0;
}
const test::RankProgram kLittle("train_a_little", train_a_little);

std::vector<int> others(int but) {
  std::vector<int> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    if (rank != but) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

// All of them failed by themselves, with these words.
void expect_failed_with(const std::vector<RankEnd>& ends, const std::string& words) {
  for (const auto& end : ends) {
    EXPECT_FALSE(end.hung) << "rank " << end.rank << " hung";
    EXPECT_EQ(end.exit_code, 1) << "rank " << end.rank;
    EXPECT_TRUE(end.said(words)) << "rank " << end.rank << ": " << end.output;
  }
}

TEST(Faults, none_ends_in_peace) {
  ProcessRanks ranks({.program = "train_a_little", .size = 4});
  for (const auto& end : ranks.finish(60s)) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_EQ(end.output, "step 0.\nstep 10.\n");
  }
}

class KilledRank : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(KilledRank, is_named_by_all_others) {
  const auto [victim, launcher] = GetParam();
  ProcessRanks ranks({.program = "train_for_ever", .size = 4, .launcher = launcher});
  ranks.await((victim + 1) % 4, "step 20.");
  ranks.signal(victim, SIGKILL);
  const auto rank = "rank " + std::to_string(victim);
  const auto words = launcher      ? rank + " was killed by signal 9 (Killed)"
                     : victim == 0 ? "[world] rank 0"
                                   : "[world] " + rank + " is gone: its process";
  expect_failed_with(ranks.finish(kLimit, others(victim)), words);
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledRank, testing::Combine(testing::Values(0, 1, 3), testing::Bool()));

TEST(Faults, stopped_rank_is_named_after_the_heartbeat_timeout) {
  ProcessRanks ranks({.program = "train_for_ever", .size = 4, .environment = {{"LOCKSTEP_HEARTBEAT_TIMEOUT_S", "2"}}});
  ranks.await(2, "step 20.");
  ranks.signal(1, SIGSTOP);
  expect_failed_with(ranks.finish(kLimit, others(1)), "[world] rank 1 has sent no heartbeat for 2 s");
}

TEST(Faults, stopped_store_host_is_named_after_the_heartbeat_timeout) {
  ProcessRanks ranks({.program = "train_for_ever", .size = 4, .environment = {{"LOCKSTEP_HEARTBEAT_TIMEOUT_S", "2"}}});
  ranks.await(2, "step 20.");
  ranks.signal(0, SIGSTOP);
  expect_failed_with(ranks.finish(kLimit, others(0)), "rank 0, which serves the store, has not answered for 2.5 s");
}

TEST(Faults, thrown_exception_reaches_all_in_its_own_words) {
  ProcessRanks ranks({.program = "throw_on_rank_2", .size = 4});
  expect_failed_with(ranks.finish(60s), "[rank 2] the solver diverged");
}

TEST(Faults, thrown_exception_counts_more_than_the_exit_it_leads_to) {
  ProcessRanks ranks({.program = "throw_on_rank_2", .size = 4, .launcher = true});
  expect_failed_with(ranks.finish(60s), "[rank 2] the solver diverged");
}

TEST(Faults, exit_without_a_word_is_named) {
  ProcessRanks ranks({.program = "exit_on_rank_2", .size = 4});
  ranks.await(2, "step 10.");
  expect_failed_with(ranks.finish(kLimit, others(2)), "[world] rank 2 is gone: its process");
}

TEST(Faults, exit_is_named_with_its_code_under_a_launcher) {
  ProcessRanks ranks({.program = "exit_on_rank_2", .size = 4, .launcher = true});
  ranks.await(2, "step 10.");
  expect_failed_with(ranks.finish(kLimit, others(2)), "[world] rank 2 exited with code 3");
}

TEST(Faults, rank_that_returns_early_is_named) {
  ProcessRanks ranks({.program = "return_early_on_rank_2", .size = 4});
  ranks.await(2, "step 10.");
  expect_failed_with(ranks.finish(kLimit, others(2)), "[world] rank 2 left after 40 collectives");
}

TEST(Faults, skipped_step_ends_all_ranks_and_shows_both_calls) {
  ProcessRanks ranks({.program = "skip_a_step_on_rank_2", .size = 4});
  ranks.await(2, "step 10.");
  const auto ends = ranks.finish(kLimit);
  expect_failed_with(ends, "[world] ranks called different collectives: rank ");
  expect_failed_with(ends, "tag 20)");
  expect_failed_with(ends, "tag 21)");
}

TEST(Faults, other_size_ends_all_ranks_and_shows_both_calls) {
  ProcessRanks ranks({.program = "other_size_on_rank_2", .size = 4});
  const auto ends = ranks.finish(60s);
  expect_failed_with(ends, "'odd one' (2000 Float, sum)");
  expect_failed_with(ends, "'odd one' (2001 Float, sum)");
}

}  // namespace
}  // namespace lockstep
