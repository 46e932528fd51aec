// SPDX-License-Identifier: Apache-2.0
// Bytes in, whole lines out.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep::launcher {

/// Cuts a stream into lines. A line longer than `max_length` comes in pieces of that length, so that a stream without
/// line ends cannot use up the memory.
class LineSplitter {
 public:
  using OnLine = std::function<void(std::string_view line)>;

  explicit LineSplitter(std::size_t max_length = std::size_t{16} << 20) : max_length_(max_length) {}

  /// Calls `on_line` for each line that `bytes` completes, without its line end.
  void feed(std::string_view bytes, const OnLine& on_line);

  /// The stream has ended: what is left is a line too.
  void finish(const OnLine& on_line);

 private:
  std::size_t max_length_;
  std::string partial_;
};

/// The end of what a rank said on stderr, for the summary.
class LastLines {
 public:
  /// Blank lines and the frames of stack traces are not kept: they would push the words out.
  void add(std::string_view line);

  /// The lines kept, oldest first, joined by line ends.
  std::string text() const;

 private:
  std::deque<std::string> lines_;
};

}  // namespace lockstep::launcher
