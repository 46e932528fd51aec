// SPDX-License-Identifier: Apache-2.0
#include "lockstep/lines.h"

#include <algorithm>

namespace lockstep::launcher {
namespace {

constexpr std::size_t kept_lines = 8;
constexpr std::size_t kept_length = 1000;

bool is_noise(std::string_view line) {
  const auto first = line.find_first_not_of(" \t\r");
  return first == std::string_view::npos || line.substr(first).starts_with("frame #");
}

}  // namespace

void LineSplitter::feed(std::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    const auto room = max_length_ - partial_.size();
    const auto taken = std::min({bytes.find('\n'), bytes.size(), room});
    partial_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    if (bytes.empty()) {
      return;
    }
    if (bytes.front() == '\n') {
      bytes.remove_prefix(1);
    }
    on_line(partial_);
    partial_.clear();
  }
}

void LineSplitter::finish(const OnLine& on_line) {
  if (!partial_.empty()) {
    on_line(partial_);
    partial_.clear();
  }
}

void LastLines::add(std::string_view line) {
  if (is_noise(line)) {
    return;
  }
  lines_.emplace_back(line.substr(0, kept_length));
  if (lines_.size() > kept_lines) {
    lines_.pop_front();
  }
}

std::string LastLines::text() const {
  std::string text;
  for (const auto& line : lines_) {
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

}  // namespace lockstep::launcher
