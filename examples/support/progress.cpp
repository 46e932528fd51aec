// SPDX-License-Identifier: Apache-2.0
#include "support/progress.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace examples {
namespace {

constexpr int kBarWidth = 24;

std::chrono::milliseconds interval(Progress::Style style) {
  return std::chrono::milliseconds(style == Progress::Style::Bar ? 100 : 1000);
}

std::string bar(std::int64_t done, std::int64_t steps) {
  const auto full = static_cast<std::size_t>(kBarWidth * done / std::max<std::int64_t>(steps, 1));
  return "[" + std::string(full, '#') + std::string(kBarWidth - full, '.') + "] ";
}

}  // namespace

Progress::Style Progress::style_for(int rank, std::FILE* out) {
  if (rank != 0) {
    return Style::Silent;
  }
  return isatty(fileno(out)) == 1 ? Style::Bar : Style::Lines;
}

Progress::Progress(std::string what, std::int64_t steps, Style style, std::FILE* out)
    : what_(std::move(what)), steps_(steps), style_(style), out_(out), due_(Clock::now() + interval(style)) {}

Progress::~Progress() {
  if (drawn_ > 0) {
    std::fprintf(out_, "\r%*s\r", static_cast<int>(drawn_), "");
    std::fflush(out_);
  }
}

std::string Progress::line(const std::string& detail) const {
  return what_ + " " + (style_ == Style::Bar ? bar(done_, steps_) : "") + std::to_string(done_) + "/" +
         std::to_string(steps_) + " " + detail;
}

void Progress::step(const std::function<std::string()>& detail) {
  ++done_;
  if (style_ == Style::Silent || Clock::now() < due_) {
    return;
  }
  const auto text = line(detail());
  if (style_ == Style::Bar) {
    std::fprintf(out_, "\r%-*s", static_cast<int>(drawn_), text.c_str());
    drawn_ = std::max(drawn_, text.size());
  } else {
    std::fprintf(out_, "%s\n", text.c_str());
  }
  std::fflush(out_);
  due_ = Clock::now() + interval(style_);
}

}  // namespace examples
