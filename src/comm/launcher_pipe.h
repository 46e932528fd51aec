// SPDX-License-Identifier: Apache-2.0
// Reads what the launcher says about other ranks: lines of the form `rank R TEXT`.
#pragma once

#include <string>
#include <vector>

#include "comm/failure.h"

namespace lockstep::comm {

class LauncherPipe {
 public:
  /// -1: no launcher. The descriptor stays the caller's; it is not inherited by programs this process starts.
  explicit LauncherPipe(int fd);

  /// -1 once the launcher has closed its end.
  int fd() const { return fd_; }

  /// Whole lines that have arrived, as words. Never blocks. Lines of another form are left out.
  std::vector<Words> read();

 private:
  void fill();

  int fd_;
  std::string buffer_;
};

}  // namespace lockstep::comm
