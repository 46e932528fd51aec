// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace examples {

/// How far a loop has come: a bar that is redrawn in place on a terminal, else a plain line a second.
class Progress {
 public:
  enum class Style : std::uint8_t { Bar, Lines, Silent };

  /// Bar where `out` is a terminal, lines elsewhere, silent on ranks other than 0.
  static Style style_for(int rank, std::FILE* out = stdout);

  /// `what` comes first in each line.
  Progress(std::string what, std::int64_t steps, Style style, std::FILE* out = stdout);
  /// Takes the bar away.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One step is done. `detail` makes the end of the line; it is only called when a line is due, so it may wait for a
  /// device.
  void step(const std::function<std::string()>& detail);

 private:
  using Clock = std::chrono::steady_clock;

  std::string line(const std::string& detail) const;

  std::string what_;
  std::int64_t steps_;
  Style style_;
  std::FILE* out_;
  std::int64_t done_ = 0;
  std::size_t drawn_ = 0;  // characters of the bar on the screen
  Clock::time_point due_;
};

}  // namespace examples
