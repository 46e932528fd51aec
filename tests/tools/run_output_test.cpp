// SPDX-License-Identifier: Apache-2.0
// Lines arrive whole, tagged, in each rank's order, and none is lost.
#include <gtest/gtest.h>
#include <unistd.h>

#include "tools/launched.h"

namespace lockstep::test {
namespace {

std::string flood_line(const std::string& stream, int i) {
  return stream + " " + std::to_string(i) + " " + std::string(static_cast<std::size_t>(i * 7 % 301), 'x');
}

void expect_flood(const std::string& text, const std::string& stream, int ranks, int lines) {
  EXPECT_EQ(lines_of(text).size(), static_cast<std::size_t>(ranks * lines));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto seen = lines_with(text, "[" + std::to_string(rank) + "] ");
    ASSERT_EQ(seen.size(), static_cast<std::size_t>(lines));
    for (int i = 0; i < lines; ++i) {
      ASSERT_EQ(seen[static_cast<std::size_t>(i)], flood_line(stream, i));
    }
  }
}

TEST(RunOutput, ManyLinesOfManyRanksArriveWholeAndInOrder) {
  for (int n = 1; n <= 4; ++n) {
    Launched launched(actors({"-n", std::to_string(n)}, {"flood=10000"}));
    launched.finish();
    EXPECT_EQ(launched.code(), 0);
    expect_flood(launched.out(), "out", n, 10000);
    expect_flood(launched.err(), "err", n, 10000);
  }
}

TEST(RunOutput, LinesStayWholeWhereBothStreamsAreOne) {
  Launched launched(actors({"-n", "3"}, {"flood=3000", "long=100000"}), {.merge = true});
  launched.finish();
  std::size_t longest = 0;
  for (const auto& line : lines_of(launched.out())) {
    ASSERT_TRUE(line.starts_with("[0] ") || line.starts_with("[1] ") || line.starts_with("[2] ")) << line;
    const auto rest = line.substr(4);
    const bool flooded = rest.starts_with("out ") || rest.starts_with("err ");
    ASSERT_EQ(rest.find_first_not_of(flooded ? "outer 0123456789x" : "y"), std::string::npos) << line;
    longest = std::max(longest, rest.size());
  }
  EXPECT_EQ(longest, 100000u);
  EXPECT_EQ(lines_of(launched.out()).size(), 3u * (2 * 3000 + 1));
}

TEST(RunOutput, ALongLineStaysOneLine) {
  Launched launched(actors({"-n", "2"}, {"long=3000000"}));
  launched.finish();
  const std::string line(3'000'000, 'y');
  EXPECT_TRUE(lines_with(launched.out(), "[0] ") == std::vector<std::string>{line});
  EXPECT_TRUE(lines_with(launched.out(), "[1] ") == std::vector<std::string>{line});
}

TEST(RunOutput, ALastLineWithoutItsEndIsALine) {
  Launched launched(actors({"-n", "2"}, {"raw=no end"}));
  launched.finish();
  EXPECT_EQ(lines_with(launched.out(), "[0] "), (std::vector<std::string>{"no end"}));
  EXPECT_TRUE(launched.out().ends_with("no end\n"));
}

TEST(RunOutput, StreamsAreKeptApart) {
  Launched launched(actors({"-n", "1"}, {"out=to stdout", "err=to stderr"}));
  launched.finish();
  EXPECT_EQ(launched.out(), "[0] to stdout\n");
  EXPECT_EQ(launched.err(), "[0] to stderr\n");
}

TEST(RunOutput, TagsCanBeLeftOut) {
  Launched launched(actors({"--no-tag"}, {"out=plain", "err=words"}));
  launched.finish();
  EXPECT_EQ(launched.out(), "plain\n");
  EXPECT_EQ(launched.err(), "words\n");
}

TEST(RunOutput, LinesShowWhileTheProgramRuns) {
  Launched launched(actors({"-n", "2"}, {"1:out=early", "sleep=60"}));
  launched.await_output("[1] early\n");
}

TEST(RunOutput, ASlowReaderLosesNothing) {
  Launched launched(actors({"-n", "2"}, {"flood=20000"}));
  ::usleep(500'000);
  launched.finish();
  EXPECT_EQ(launched.code(), 0);
  expect_flood(launched.out(), "out", 2, 20000);
}

TEST(RunOutput, WhatADyingRankSaidIsNotLost) {
  Launched launched(actors({"-n", "2", "--notice", "20"}, {"1:flood=2000", "1:kill=9", "events=1"}));
  launched.finish();
  const auto seen = lines_with(launched.err(), "[1] err ");
  EXPECT_EQ(seen.size(), 2000u);
  EXPECT_NE(launched.err().find("    " + flood_line("err", 1999) + "\n"), std::string::npos);
}

// As a pipeline into `head` ends the program before it.
TEST(RunOutput, AGoneReaderEndsTheRun) {
  const TempFolder folder;
  Launched launched(actors({"-n", "2"}, {"pid=" + folder.path(), "flood=1000000", "sleep=60"}));
  launched.await_output("out 0");
  const auto pids = folder.pids(2);
  launched.close_output();
  launched.finish();
  EXPECT_EQ(launched.code(), 141);
  EXPECT_TRUE(all_gone(pids, std::chrono::milliseconds(0)));
}

}  // namespace
}  // namespace lockstep::test
