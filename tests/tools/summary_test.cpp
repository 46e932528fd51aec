// SPDX-License-Identifier: Apache-2.0
#include "lockstep/summary.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

int exited(int code) {
  return code << 8;
}

RankAccount account(int rank, int status, std::optional<double> timestamp = std::nullopt) {
  return {.rank = rank, .pid = 100 + rank, .end = {.status = status, .seconds = 1.25}, .timestamp = timestamp};
}

TEST(RootCause, NoneWhereAllEndedWell) {
  EXPECT_EQ(root_cause({account(0, 0), account(1, 0)}), nullptr);
  EXPECT_EQ(root_cause({}), nullptr);
}

TEST(RootCause, TheFirstSeen) {
  const std::vector<RankAccount> all{account(2, 0), account(1, exited(3)), account(0, exited(1))};
  EXPECT_EQ(root_cause(all)->rank, 1);
}

TEST(RootCause, RanksThatWereToldToEndDoNotCount) {
  std::vector<RankAccount> all{account(2, 15), account(1, exited(3))};
  all[0].end.was_told = true;
  EXPECT_EQ(root_cause(all)->rank, 1);
}

TEST(RootCause, TheirOwnTimesDecideWhereBothHaveOne) {
  EXPECT_EQ(root_cause({account(0, exited(1), 20.0), account(1, exited(1), 10.0)})->rank, 1);
  EXPECT_EQ(root_cause({account(0, exited(1), 10.0), account(1, exited(1), 10.0)})->rank, 0);
  // A killed rank cannot say when; its end was seen first, and that counts.
  EXPECT_EQ(root_cause({account(0, SIGKILL), account(1, exited(1), 10.0)})->rank, 0);
}

TEST(FailureSummary, NamesRankEndPidHostTimeAndWords) {
  std::vector<RankAccount> all{account(2, exited(3)), account(0, 15), account(1, 15), account(3, 0)};
  all[0].words = "first line\nsecond line";
  all[1].end.was_told = all[2].end.was_told = true;
  EXPECT_EQ(failure_summary(all, all[0], "node7"),
            "[lockstep.run] rank 2 exited with code 3; pid 102 on host node7, after 1.2 s\n"
            "  its last words:\n"
            "    first line\n"
            "    second line\n"
            "  rank 3: exited with code 0\n"
            "  ranks 0, 1: killed by signal 15 (Terminated) after being told to end\n");
}

TEST(FailureSummary, AKillGetsAHint) {
  const std::vector<RankAccount> all{account(0, SIGKILL)};
  const auto text = failure_summary(all, all[0], "h");
  EXPECT_NE(text.find("rank 0 was killed by signal 9 (Killed)"), std::string::npos) << text;
  EXPECT_NE(text.find("memory"), std::string::npos) << text;
}

TEST(ExitCode, IsWhatShellsUse) {
  EXPECT_EQ(exit_code_of(exited(3)), 3);
  EXPECT_EQ(exit_code_of(SIGKILL), 137);
  EXPECT_EQ(exit_code_of(0), 0);
}

}  // namespace
}  // namespace lockstep::launcher
