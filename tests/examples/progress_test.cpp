// SPDX-License-Identifier: Apache-2.0
#include "support/progress.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

namespace examples {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

std::string contents(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
    text += static_cast<char>(c);
  }
  return text;
}

// Ten steps of `pause` each, and how often the detail was asked for.
std::string shown(Progress::Style style, std::chrono::milliseconds pause, int& asked) {
  const File file(std::tmpfile(), std::fclose);
  {
    Progress progress("epoch 1/3", 10, style, file.get());
    for (int step = 0; step < 10; ++step) {
      std::this_thread::sleep_for(pause);
      progress.step([&] {
        ++asked;
        return std::string("loss 0.5");
      });
    }
  }
  return contents(file.get());
}

TEST(Progress, writes_a_plain_line_a_second) {
  int asked = 0;
  const auto text = shown(Progress::Style::Lines, std::chrono::milliseconds(130), asked);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_TRUE(text.ends_with("/10 loss 0.5\n")) << text;
  EXPECT_TRUE(text.starts_with("epoch 1/3 ")) << text;
}

TEST(Progress, redraws_a_bar_in_place_and_takes_it_away) {
  int asked = 0;
  const auto text = shown(Progress::Style::Bar, std::chrono::milliseconds(40), asked);
  EXPECT_GE(asked, 1);
  EXPECT_LE(asked, 4);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_NE(text.find('#'), std::string::npos);
  EXPECT_TRUE(text.ends_with(" \r")) << text;
}

TEST(Progress, says_nothing_where_a_loop_is_short_or_the_rank_is_another) {
  int asked = 0;
  EXPECT_EQ(shown(Progress::Style::Lines, std::chrono::milliseconds(0), asked), "");
  EXPECT_EQ(shown(Progress::Style::Silent, std::chrono::milliseconds(120), asked), "");
  EXPECT_EQ(asked, 0);
}

TEST(Progress, draws_bars_on_terminals_only_and_on_rank_0_only) {
  const File file(std::tmpfile(), std::fclose);
  EXPECT_EQ(Progress::style_for(0, file.get()), Progress::Style::Lines);
  EXPECT_EQ(Progress::style_for(1, file.get()), Progress::Style::Silent);
}

}  // namespace
}  // namespace examples
