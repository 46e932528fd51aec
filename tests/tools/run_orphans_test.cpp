// SPDX-License-Identifier: Apache-2.0
// Nothing that a run has started outlives it, whoever is killed. Ranks, their children, and children in sessions of
// their own that ignore SIGTERM.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "tools/launched.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;

std::vector<std::string> family(const std::string& folder) {
  return {"pid=" + folder, "child=" + folder, "daemon=" + folder};
}

std::vector<std::string> family_then(const std::string& folder, std::initializer_list<std::string> actions) {
  auto list = family(folder);
  list.insert(list.end(), actions);
  return list;
}

pid_t supervisor_of(pid_t launcher) {
  std::ifstream file("/proc/" + std::to_string(launcher) + "/task/" + std::to_string(launcher) + "/children");
  pid_t pid = -1;
  file >> pid;
  return pid;
}

TEST(RunOrphans, KillingTheLauncherEndsEverything) {
  const TempFolder folder, scratch;
  Launched launched(actors({"-n", "4"}, family_then(folder.path(), {"ignore=15", "sleep=60"})),
                    {.environment = {"TMPDIR=" + scratch.path()}});
  const auto pids = folder.pids(12);
  ASSERT_EQ(pids.size(), 12u);
  EXPECT_FALSE(std::filesystem::is_empty(scratch.path()));
  launched.send(SIGKILL);
  EXPECT_TRUE(all_gone(pids, seconds(5)));
  launched.finish();
  EXPECT_EQ(launched.code(), 1000 + SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(RunOrphans, KillingTheSupervisorEndsEverything) {
  const TempFolder folder, scratch;
  Launched launched(actors({"-n", "4"}, family_then(folder.path(), {"ignore=15", "sleep=60"})),
                    {.environment = {"TMPDIR=" + scratch.path()}});
  const auto pids = folder.pids(12);
  ASSERT_EQ(pids.size(), 12u);
  EXPECT_FALSE(std::filesystem::is_empty(scratch.path()));
  const pid_t supervisor = supervisor_of(launched.pid());
  ASSERT_GT(supervisor, 0);
  ::kill(supervisor, SIGKILL);
  launched.finish();
  EXPECT_EQ(launched.code(), 137);
  EXPECT_NE(launched.err().find("the supervisor was killed by signal 9"), std::string::npos) << launched.err();
  EXPECT_TRUE(all_gone(pids, seconds(0)));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

// The output pipes are full and nobody reads: the supervisor must not sit in a write.
TEST(RunOrphans, KillingTheLauncherWorksWhileNobodyReads) {
  const TempFolder folder;
  Launched launched(actors({"-n", "2"}, family_then(folder.path(), {"flood=1000000", "sleep=60"})));
  const auto pids = folder.pids(6);
  ASSERT_EQ(pids.size(), 6u);
  ::usleep(300'000);
  launched.send(SIGKILL);
  EXPECT_TRUE(all_gone(pids, seconds(5)));
}

TEST(RunOrphans, AKilledRanksChildrenGoToo) {
  const TempFolder folder;
  Launched launched(actors({"-n", "2", "--notice", "0.1", "--grace", "0.2"},
                           family_then(folder.path(), {"1:sleep=0.3", "1:kill=9", "sleep=60"})));
  const auto pids = folder.pids(6);
  launched.finish();
  EXPECT_EQ(launched.code(), 137);
  EXPECT_EQ(pids.size(), 6u);
  EXPECT_TRUE(all_gone(pids, seconds(0)));
  EXPECT_LT(launched.seconds(), 10);
}

// They hold the output pipes, too, which must not keep the launcher.
TEST(RunOrphans, ProcessesLeftBehindByAGoodRunAreEnded) {
  const TempFolder folder;
  Launched launched(actors({"-n", "2", "--notice", "0.1", "--grace", "0.2"}, family_then(folder.path(), {"out=done"})));
  const auto pids = folder.pids(6);
  launched.finish();
  EXPECT_EQ(launched.code(), 0);
  EXPECT_EQ(pids.size(), 6u);
  EXPECT_TRUE(all_gone(pids, seconds(0)));
  EXPECT_EQ(lines_with(launched.out(), "[1] "), (std::vector<std::string>{"done"}));
  EXPECT_NE(launched.err().find("processes they left behind"), std::string::npos) << launched.err();
  EXPECT_LT(launched.seconds(), 10);
}

}  // namespace
}  // namespace lockstep::test
