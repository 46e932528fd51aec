// SPDX-License-Identifier: Apache-2.0
// One rank fails: what the others are told, when they end, and what is said about it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tools/launched.h"

namespace lockstep::test {
namespace {

TEST(RunFailure, TheExitCodeIsTheFailingRanks) {
  for (int n = 1; n <= 4; ++n) {
    const auto last = std::to_string(n - 1);
    Launched launched(actors({"-n", std::to_string(n)}, {last + ":err=my words", last + ":exit=3"}));
    launched.finish();
    EXPECT_EQ(launched.code(), 3);
    EXPECT_TRUE(holds(launched.err(), "[lockstep.run] rank " + last + " exited with code 3; pid ")) << launched.err();
    EXPECT_TRUE(holds(launched.err(), "  its last words:\n    my words\n")) << launched.err();
  }
}

TEST(RunFailure, AKilledRankGives128AndItsSignal) {
  Launched launched(actors({"-n", "3", "--notice", "0"}, {"1:kill=9", "sleep=30"}));
  launched.finish();
  EXPECT_EQ(launched.code(), 137);
  EXPECT_TRUE(holds(launched.err(), "rank 1 was killed by signal 9 (Killed); pid ")) << launched.err();
  EXPECT_TRUE(holds(launched.err(), "ranks 0, 2: killed by signal 15 (Terminated) after being told to end"))
      << launched.err();
  EXPECT_LT(launched.seconds(), 5);
}

TEST(RunFailure, SurvivorsAreToldAtOnceAndMayEndInTheirOwnWords) {
  Launched launched(actors({"-n", "4", "--notice", "20"}, {"2:kill=9", "events=1", "err=I saw it", "exit=5"}));
  launched.finish();
  EXPECT_EQ(launched.code(), 137);
  for (const char* rank : {"0", "1", "3"}) {
    EXPECT_EQ(lines_with(launched.out(), std::string("[") + rank + "] "),
              (std::vector<std::string>{"heard rank 2 was killed by signal 9 (Killed)"}));
  }
  EXPECT_TRUE(holds(launched.err(), "ranks 0, 1, 3: exited with code 5\n")) << launched.err();
  EXPECT_LT(launched.seconds(), 10);
}

TEST(RunFailure, EveryFurtherFailureIsToldToo) {
  Launched launched(actors({"-n", "3", "--notice", "20"}, {"0:exit=3", "1:events=1", "1:exit=4", "2:events=2"}));
  launched.finish();
  EXPECT_EQ(launched.code(), 3);
  EXPECT_TRUE(holds(launched.out(), "[2] heard rank 0 exited with code 3\n[2] rank 1 exited with code 4\n"))
      << launched.out();
}

TEST(RunFailure, TheNoticeEndsWithSigterm) {
  Launched launched(actors({"-n", "2", "--notice", "0.3"}, {"0:exit=1", "remember=15", "await=30", "exit=0"}));
  launched.finish();
  EXPECT_EQ(launched.code(), 1);
  EXPECT_EQ(lines_with(launched.out(), "[1] "), (std::vector<std::string>{"got signal 15"}));
  EXPECT_GE(launched.seconds(), 0.3);
  EXPECT_LT(launched.seconds(), 10);
}

TEST(RunFailure, WhoIgnoresSigtermIsKilledAfterTheGrace) {
  const TempFolder folder;
  Launched launched(actors({"-n", "3", "--notice", "0.1", "--grace", "0.4"},
                           {"ignore=15", "pid=" + folder.path(), "0:sleep=0.3", "0:exit=1", "sleep=60"}));
  const auto pids = folder.pids(3);
  launched.finish();
  EXPECT_EQ(launched.code(), 1);
  EXPECT_TRUE(holds(launched.err(), "ranks 1, 2: killed by signal 9 (Killed) after being told to end"))
      << launched.err();
  EXPECT_GE(launched.seconds(), 0.5);
  EXPECT_LT(launched.seconds(), 15);
  EXPECT_EQ(pids.size(), 3u);
  EXPECT_TRUE(all_gone(pids, std::chrono::milliseconds(0)));
}

TEST(RunFailure, AStoppedRankIsEndedToo) {
  Launched launched(
      actors({"-n", "2", "--notice", "0.2", "--grace", "20"}, {"1:kill=19", "1:sleep=30", "0:sleep=0.3", "0:exit=1"}));
  launched.finish();
  EXPECT_EQ(launched.code(), 1);
  EXPECT_TRUE(holds(launched.err(), "rank 1: killed by signal 15")) << launched.err();
  EXPECT_LT(launched.seconds(), 15);
}

TEST(RunFailure, EndingWellAndEarlyIsNoFailure) {
  Launched launched(actors({"-n", "3"}, {"0:exit=0", "1:exit=0", "sleep=0.5", "out=still here"}));
  launched.finish();
  EXPECT_EQ(launched.code(), 0);
  EXPECT_EQ(launched.out(), "[2] still here\n");
  EXPECT_EQ(launched.err(), "");
}

TEST(RunFailure, TheErrorFilesWordsAndTimesAreUsed) {
  const std::string early = R"({"message": {"message": "the cause", "extraInfo": {"timestamp": "100"}}})";
  const std::string late = R"({"message": {"message": "a consequence", "extraInfo": {"timestamp": "200"}}})";
  Launched launched(actors({"-n", "2", "--notice", "20"},
                           {"0:report=" + early, "1:report=" + late, "1:exit=7", "events=1", "exit=6"}));
  launched.finish();
  EXPECT_EQ(launched.code(), 6) << "rank 0 ended later, but said that it had failed first";
  EXPECT_TRUE(holds(launched.err(), "rank 0 exited with code 6; pid ")) << launched.err();
  EXPECT_TRUE(holds(launched.err(), "    the cause\n")) << launched.err();
}

TEST(RunFailure, AMissingProgramIsOneMessage) {
  Launched launched({"run", "-n", "4", "no-such-program-here"});
  launched.finish();
  EXPECT_EQ(launched.code(), 127);
  EXPECT_EQ(lines_of(launched.err()).size(), 1u) << launched.err();
  EXPECT_TRUE(holds(launched.err(), "program not found; got 'no-such-program-here'"));
}

TEST(RunFailure, AProgramThatCannotBeExecutedIsOneMessage) {
  const TempFolder folder;
  const std::string file = folder.path() + "/script";
  std::ofstream(file) << "echo no first line\n";
  for (const bool executable : {false, true}) {
    std::filesystem::permissions(file,
                                 executable ? std::filesystem::perms::owner_all : std::filesystem::perms::owner_read);
    Launched launched({"run", "-n", "4", file});
    launched.finish();
    EXPECT_EQ(launched.code(), 126);
    EXPECT_EQ(lines_of(launched.err()).size(), 1u) << launched.err();
    EXPECT_TRUE(holds(launched.err(), executable ? "#!/bin/sh" : "chmod")) << launched.err();
  }
}

}  // namespace
}  // namespace lockstep::test
