// SPDX-License-Identifier: Apache-2.0
// What waits to be written to stdout and stderr. One queue for both keeps the order in which lines came in, and keeps a
// long line whole where both are the same terminal or file.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace lockstep::launcher {

class OutputQueue {
 public:
  void push(int fd, std::string_view text);

  bool empty() const { return segments_.empty(); }
  /// True where nothing more should be read until something has been written: the ranks then wait in their own writes,
  /// as they would without a launcher between.
  bool full() const { return size_ > (std::size_t{1} << 20); }
  /// The descriptor that the next write goes to. REQUIRES: not empty.
  int next_fd() const { return segments_.front().fd; }

  enum class Written {
    Fine,
    Lost,        // this piece could not be written (a full disk)
    ReaderGone,  // nobody reads that descriptor any more; what is meant for it is dropped from now on
  };

  /// Writes a piece that fits where poll() has just said that `next_fd()` can be written. Never blocks on a pipe.
  Written write_some();

  /// Drops all that waits.
  void clear();

 private:
  struct Segment {
    int fd;
    std::string text;
    std::size_t written = 0;
  };

  void advance(std::size_t count);
  void drop(int fd);

  std::deque<Segment> segments_;
  std::size_t size_ = 0;
  bool gone_[3] = {};
};

}  // namespace lockstep::launcher
