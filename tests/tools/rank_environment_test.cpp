// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "lockstep/environment.h"

namespace lockstep::launcher {
namespace {

Environment from(std::vector<std::string> entries) {
  std::vector<char*> list;
  for (auto& entry : entries) {
    list.push_back(entry.data());
  }
  list.push_back(nullptr);
  return Environment(list.data());
}

TEST(Environment, FindsWholeNamesOnly) {
  const auto environment = from({"RANKS=7", "EMPTY=", "A=b=c", "odd"});
  EXPECT_EQ(environment.find("RANK"), std::nullopt);
  EXPECT_EQ(environment.find("EMPTY"), "");
  EXPECT_EQ(environment.find("A"), "b=c");
  EXPECT_EQ(environment.find("odd"), std::nullopt);
}

TEST(Environment, SettingReplacesEveryEntryOfTheName) {
  auto environment = from({"X=1", "Y=2", "X=3"});
  environment.set("X", "4");
  environment.set_default("Y", "5");
  environment.set_default("Z", "6");
  std::vector<std::string> entries;
  for (const char* entry : environment.pointers()) {
    if (entry != nullptr) {
      entries.emplace_back(entry);
    }
  }
  EXPECT_EQ(entries, (std::vector<std::string>{"Y=2", "X=4", "Z=6"}));
}

TEST(RankEnvironment, RanksOfTheSecondMachineFollowThoseOfTheFirst) {
  RunOptions options;
  options.ranks = 3;
  options.nodes = 2;
  options.node_rank = 1;
  options.master_addr = "head";
  options.master_port = 29500;
  const auto result = rank_environment({}, options, {.local_rank = 2, .events_fd = 9, .error_file = "/t/e"});
  EXPECT_EQ(result.find("RANK"), "5");
  EXPECT_EQ(result.find("LOCAL_RANK"), "2");
  EXPECT_EQ(result.find("WORLD_SIZE"), "6");
  EXPECT_EQ(result.find("LOCAL_WORLD_SIZE"), "3");
  EXPECT_EQ(result.find("GROUP_RANK"), "1");
  EXPECT_EQ(result.find("GROUP_WORLD_SIZE"), "2");
  EXPECT_EQ(result.find("MASTER_ADDR"), "head");
  EXPECT_EQ(result.find("MASTER_PORT"), "29500");
}

TEST(RankEnvironment, TheLaunchersOwnWinOverAnOuterJobs) {
  const auto result = rank_environment(from({"RANK=77", "WORLD_SIZE=99", "TORCHELASTIC_USE_AGENT_STORE=True",
                                             "LOCKSTEP_EVENTS_FD=3", "TORCHELASTIC_RESTART_COUNT=5"}),
                                       {}, {.local_rank = 0, .events_fd = 12, .error_file = "/t/e"});
  EXPECT_EQ(result.find("RANK"), "0");
  EXPECT_EQ(result.find("WORLD_SIZE"), "1");
  EXPECT_EQ(result.find("TORCHELASTIC_USE_AGENT_STORE"), "False");
  EXPECT_EQ(result.find("TORCHELASTIC_RESTART_COUNT"), "0");
  EXPECT_EQ(result.find("LOCKSTEP_EVENTS_FD"), "12");
}

TEST(RankEnvironment, ThreadsAreLimitedOnlyWhereNobodySaidAndRanksShare) {
  RunOptions options;
  EXPECT_EQ(rank_environment({}, options, {}).find("OMP_NUM_THREADS"), std::nullopt);
  options.ranks = 2;
  EXPECT_EQ(rank_environment({}, options, {}).find("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(rank_environment(from({"OMP_NUM_THREADS=6"}), options, {}).find("OMP_NUM_THREADS"), "6");
}

TEST(RankEnvironment, NcclErrorHandlingIsLeftAsTheUserSetIt) {
  EXPECT_EQ(rank_environment({}, {}, {}).find("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
  const auto set = from({"TORCH_NCCL_ASYNC_ERROR_HANDLING=3"});
  EXPECT_EQ(rank_environment(set, {}, {}).find("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
}

}  // namespace
}  // namespace lockstep::launcher
