// SPDX-License-Identifier: Apache-2.0
// What each rank finds in its environment and in its process state.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <set>

#include "tools/launched.h"

namespace lockstep::test {
namespace {

using Variables = std::map<std::string, std::string>;

Variables variables_of(const std::string& out, int rank) {
  Variables result;
  for (const auto& line : lines_with(out, "[" + std::to_string(rank) + "] ")) {
    const auto equals = line.find('=');
    result[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return result;
}

TEST(RunEnvironment, TorchrunsVariablesForOneToFourRanks) {
  for (int n = 1; n <= 4; ++n) {
    Launched launched(actors({"-n", std::to_string(n)}, {"env"}),
                      {.environment = {"OMP_NUM_THREADS", "KEPT=from outside", "RANK=88", "WORLD_SIZE=99"}});
    launched.finish();
    ASSERT_EQ(launched.code(), 0) << launched.err();
    EXPECT_EQ(launched.err(), "");
    std::set<std::string> ports, error_files;
    for (int rank = 0; rank < n; ++rank) {
      auto seen = variables_of(launched.out(), rank);
      ports.insert(seen["MASTER_PORT"]);
      error_files.insert(seen["TORCHELASTIC_ERROR_FILE"]);
      EXPECT_GT(std::stoi(seen["LOCKSTEP_EVENTS_FD"]), 2);
      for (const char* differs : {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "LOCKSTEP_EVENTS_FD"}) {
        seen.erase(differs);
      }
      const auto r = std::to_string(rank);
      const auto size = std::to_string(n);
      EXPECT_EQ(seen, (Variables{{"RANK", r},
                                 {"LOCAL_RANK", r},
                                 {"WORLD_SIZE", size},
                                 {"LOCAL_WORLD_SIZE", size},
                                 {"GROUP_RANK", "0"},
                                 {"GROUP_WORLD_SIZE", "1"},
                                 {"ROLE_RANK", r},
                                 {"ROLE_WORLD_SIZE", size},
                                 {"ROLE_NAME", "default"},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"TORCHELASTIC_RESTART_COUNT", "0"},
                                 {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                 {"TORCHELASTIC_RUN_ID", "none"},
                                 {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                 {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                 {"OMP_NUM_THREADS", n == 1 ? "(unset)" : "1"},
                                 {"KEPT", "from outside"}}));
    }
    EXPECT_EQ(ports.size(), 1u);
    EXPECT_EQ(error_files.size(), static_cast<std::size_t>(n));
  }
}

TEST(RunEnvironment, TwoMachinesMakeOneWorld) {
  std::vector<std::string> ranks;
  for (const char* node : {"0", "1"}) {
    Launched launched(actors(
        {"-n", "2", "--nnodes", "2", "--node-rank", node, "--master-addr", "head.example", "--master-port", "29511"},
        {"env"}));
    launched.finish();
    ASSERT_EQ(launched.code(), 0) << launched.err();
    for (int rank = 0; rank < 4; ++rank) {
      auto seen = variables_of(launched.out(), rank);
      if (!seen.empty()) {
        ranks.push_back(seen["RANK"] + " of " + seen["WORLD_SIZE"] + " on " + seen["GROUP_RANK"] + " local " +
                        seen["LOCAL_RANK"] + " at " + seen["MASTER_ADDR"] + ":" + seen["MASTER_PORT"]);
      }
    }
  }
  EXPECT_EQ(ranks, (std::vector<std::string>{
                       "0 of 4 on 0 local 0 at head.example:29511", "1 of 4 on 0 local 1 at head.example:29511",
                       "2 of 4 on 1 local 0 at head.example:29511", "3 of 4 on 1 local 1 at head.example:29511"}));
}

TEST(RunEnvironment, ALoopbackAddressForTwoMachinesIsWarnedOf) {
  Launched launched(actors(
      {"--nnodes", "2", "--node-rank", "1", "--master-addr", "localhost", "--master-port", "29512"}, {"out=runs"}));
  launched.finish();
  EXPECT_EQ(launched.code(), 0);
  EXPECT_NE(launched.err().find("loopback address; got 'localhost'"), std::string::npos) << launched.err();
}

TEST(RunEnvironment, ProgramsStartWithAnUntouchedSignalState) {
  Launched launched(actors({"-n", "2"}, {"state"}));
  launched.finish();
  EXPECT_EQ(lines_with(launched.out(), "[0] "), (std::vector<std::string>{"blocked 0 SIGPIPE default"}));
  EXPECT_EQ(lines_with(launched.out(), "[1] "), (std::vector<std::string>{"blocked 0 SIGPIPE default"}));
}

TEST(RunEnvironment, OnlyTheFirstRankCanBeTypedTo) {
  Launched launched(actors({"-n", "2"}, {"stdin"}), {.input = "words"});
  launched.finish();
  EXPECT_EQ(lines_with(launched.out(), "[0] "), (std::vector<std::string>{"read words"}));
  EXPECT_EQ(lines_with(launched.out(), "[1] "), (std::vector<std::string>{"read "}));
}

TEST(RunEnvironment, NothingIsLeftInTheTemporaryFolder) {
  const TempFolder folder;
  Launched launched(actors({"-n", "2"}, {"report=words", "env"}), {.environment = {"TMPDIR=" + folder.path()}});
  launched.finish();
  EXPECT_NE(launched.out().find("TORCHELASTIC_ERROR_FILE=" + folder.path()), std::string::npos) << launched.out();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(RunEnvironment, ATemporaryFolderThatCannotBeUsedIsNamed) {
  Launched launched(actors({}, {"out=x"}), {.environment = {"TMPDIR=/nonexistent"}});
  launched.finish();
  EXPECT_EQ(launched.code(), 1);
  EXPECT_NE(launched.err().find("/nonexistent"), std::string::npos) << launched.err();
  EXPECT_NE(launched.err().find("TMPDIR"), std::string::npos) << launched.err();
}

}  // namespace
}  // namespace lockstep::test
