// SPDX-License-Identifier: Apache-2.0
// One of a rank's two output streams on its way to the launcher's own.
#pragma once

#include <string>

#include "lockstep/fd.h"
#include "lockstep/lines.h"
#include "lockstep/output_queue.h"

namespace lockstep::launcher {

class RankStream {
 public:
  /// `source` is read; whole lines with `tag` before them go to `target` (1 or 2).
  RankStream(UniqueFd source, int target, std::string tag);

  /// Closed once the stream has ended.
  bool is_open() const { return source_.is_open(); }
  int fd() const { return source_.get(); }

  /// Reads what is there, up to one block, without blocking. Returns true where something was read.
  bool read_some(OutputQueue& out);

  /// Reads what is there, then treats the stream as ended, although others may still hold its write end.
  void end(OutputQueue& out);

  const LastLines& last_lines() const { return last_lines_; }

 private:
  LineSplitter::OnLine line_to(OutputQueue& out);

  UniqueFd source_;
  int target_;
  std::string tag_;
  LineSplitter splitter_;
  LastLines last_lines_;
};

}  // namespace lockstep::launcher
