// SPDX-License-Identifier: Apache-2.0
#include "lockstep/lines.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::launcher {
namespace {

using Lines = std::vector<std::string>;

// Feeds `text` in pieces of `step` bytes.
Lines split(const std::string& text, std::size_t step, std::size_t max_length) {
  LineSplitter splitter(max_length);
  Lines lines;
  const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
  for (std::size_t at = 0; at < text.size(); at += step) {
    splitter.feed(std::string_view(text).substr(at, step), keep);
  }
  splitter.finish(keep);
  return lines;
}

TEST(LineSplitter, ResultDoesNotDependOnHowBytesArrive) {
  const std::string text = "one\n\ntwo three\nfour";
  for (std::size_t step = 1; step <= text.size(); ++step) {
    EXPECT_EQ(split(text, step, 100), (Lines{"one", "", "two three", "four"})) << step;
  }
}

TEST(LineSplitter, ALastLineEndMakesNoEmptyLine) {
  EXPECT_EQ(split("a\n", 1, 100), (Lines{"a"}));
}

TEST(LineSplitter, NothingGivesNothing) {
  EXPECT_EQ(split("", 1, 100), Lines{});
}

TEST(LineSplitter, KeepsOtherControlBytes) {
  EXPECT_EQ(split(std::string("a\r\n\0b\n", 6), 6, 100), (Lines{"a\r", std::string("\0b", 2)}));
}

TEST(LineSplitter, LongLinesComeInPiecesOfTheLimit) {
  for (std::size_t step = 1; step <= 9; ++step) {
    EXPECT_EQ(split("abcdefgh\nij", step, 3), (Lines{"abc", "def", "gh", "ij"})) << step;
    EXPECT_EQ(split("abc\ndef", step, 3), (Lines{"abc", "def"})) << step;
    EXPECT_EQ(split("abcdef\n", step, 3), (Lines{"abc", "def"})) << step;
  }
}

TEST(LastLines, KeepsTheEnd) {
  LastLines lines;
  for (int i = 0; i < 100; ++i) {
    lines.add("line " + std::to_string(i));
  }
  EXPECT_TRUE(lines.text().ends_with("line 98\nline 99"));
  EXPECT_EQ(lines.text().find("line 91"), std::string::npos);
}

TEST(LastLines, StackFramesDoNotPushTheWordsOut) {
  LastLines lines;
  lines.add("  what():  shapes differ");
  for (int i = 0; i < 50; ++i) {
    lines.add("frame #" + std::to_string(i) + ": somewhere");
    lines.add("");
  }
  EXPECT_EQ(lines.text(), "  what():  shapes differ");
}

TEST(LastLines, AVeryLongLineIsCut) {
  LastLines lines;
  lines.add(std::string(1 << 20, 'x'));
  EXPECT_LE(lines.text().size(), 1000u);
}

}  // namespace
}  // namespace lockstep::launcher
