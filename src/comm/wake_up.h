// SPDX-License-Identifier: Apache-2.0
// Sleeping that another thread can cut short, and that a readable pipe cuts short too.
#pragma once

#include <chrono>

namespace lockstep::comm {

class WakeUp {
 public:
  WakeUp();
  ~WakeUp();
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  /// From any thread.
  void ring() noexcept;

  /// Returns after `limit`, a ring (also an earlier one nobody slept through), or once `fd` (-1: none) is readable.
  void sleep(std::chrono::milliseconds limit, int fd);

 private:
  int event_;
};

}  // namespace lockstep::comm
