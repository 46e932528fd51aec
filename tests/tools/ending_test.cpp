// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ending.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;
using Phase = Ending::Phase;

const TimePoint start = TimePoint() + std::chrono::hours(1);

TimePoint at(int ms) {
  return start + milliseconds(ms);
}

TEST(Ending, NothingIsDueWhileAllIsWell) {
  Ending ending(milliseconds(100), milliseconds(1000));
  EXPECT_EQ(ending.due(at(1'000'000)), std::nullopt);
  EXPECT_EQ(ending.deadline(), std::nullopt);
}

TEST(Ending, NoticeThenTermThenGraceThenKillAgainAndAgain) {
  Ending ending(milliseconds(100), milliseconds(1000));
  ending.give_notice(at(0));
  ending.give_notice(at(90));  // a second failure gives no longer notice
  EXPECT_EQ(ending.due(at(99)), std::nullopt);
  EXPECT_EQ(ending.due(at(100)), SIGTERM);
  EXPECT_EQ(ending.due(at(101)), std::nullopt);
  EXPECT_EQ(ending.deadline(), at(1100));
  EXPECT_EQ(ending.due(at(1100)), SIGKILL);
  EXPECT_EQ(ending.due(at(1150)), std::nullopt);
  EXPECT_EQ(ending.due(at(1200)), SIGKILL);
}

TEST(Ending, ASignalFromOutsideSkipsTheNotice) {
  Ending ending(milliseconds(100), milliseconds(1000));
  ending.stop(at(0));
  ending.give_notice(at(1));
  ending.stop(at(500));  // a second one does not lengthen the grace
  EXPECT_EQ(ending.phase(), Phase::Stopping);
  EXPECT_EQ(ending.due(at(999)), std::nullopt);
  EXPECT_EQ(ending.due(at(1000)), SIGKILL);
}

TEST(Ending, KillIsDueAtOnceAndHopelessAfterTenSeconds) {
  Ending ending(milliseconds(100), milliseconds(1000));
  ending.kill(at(0));
  EXPECT_EQ(ending.due(at(0)), SIGKILL);
  EXPECT_FALSE(ending.is_hopeless(at(9'000)));
  EXPECT_EQ(ending.due(at(9'000)), SIGKILL);
  EXPECT_TRUE(ending.is_hopeless(at(10'001)));
}

TEST(Ending, ZeroTimesAreLegal) {
  Ending ending(milliseconds(0), milliseconds(0));
  ending.give_notice(at(0));
  EXPECT_EQ(ending.due(at(0)), SIGTERM);
  EXPECT_EQ(ending.due(at(0)), SIGKILL);
}

}  // namespace
}  // namespace lockstep::launcher
