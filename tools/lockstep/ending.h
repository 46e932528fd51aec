// SPDX-License-Identifier: Apache-2.0
// How a run is brought to its end, as a plan without system calls: notice, SIGTERM, grace, SIGKILL.
#pragma once

#include <chrono>
#include <optional>

namespace lockstep::launcher {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

class Ending {
 public:
  enum class Phase {
    Running,
    Notice,    // somebody failed; the others may still end by themselves, in their own words
    Stopping,  // all have been told to end
    Killing,
  };

  Ending(std::chrono::milliseconds notice, std::chrono::milliseconds grace) : notice_(notice), grace_(grace) {}

  Phase phase() const { return phase_; }

  /// A rank failed, or only processes that ranks left behind are alive.
  void give_notice(TimePoint now);

  /// Everybody has just been sent a signal that ends programs. The grace runs from the first such signal.
  void stop(TimePoint now);

  /// No more patience.
  void kill(TimePoint now);

  /// The signal that everybody should be sent at `now`, if any. SIGKILL comes again every 100 ms, since a process may
  /// have started others meanwhile.
  std::optional<int> due(TimePoint now);

  /// SIGKILL has had no effect for so long that waiting is of no use (a process stuck in a driver).
  bool is_hopeless(TimePoint now) const;

  /// When due() may next have something to say.
  std::optional<TimePoint> deadline() const;

 private:
  std::chrono::milliseconds notice_;
  std::chrono::milliseconds grace_;
  Phase phase_ = Phase::Running;
  TimePoint deadline_;
  TimePoint killing_since_;
};

}  // namespace lockstep::launcher
