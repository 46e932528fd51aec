// SPDX-License-Identifier: Apache-2.0
// From signs that a peer is gone (a broken collective, a process that ended, a heartbeat that stopped) to words that
// name it. Better words than these may be under way, from the launcher or from the rank itself, and get a moment.
#pragma once

#include <optional>

#include "comm/failure.h"
#include "comm/peers.h"
#include "comm/watch.h"

namespace lockstep::comm {

class Suspicion {
 public:
  Suspicion(Watch& watch, Peers& peers) : watch_(watch), peers_(peers) {}

  /// Reads the neighbour's pulse, and notes what speaks against it.
  void look_at_neighbour();

  /// Words, once the signs are enough and nobody has better ones. REQUIRES: all ranks have arrived.
  std::optional<Words> judge(bool has_launcher);

 private:
  using Clock = Watch::Clock;

  std::optional<Words> judge_neighbour(bool has_launcher);
  std::optional<Words> judge_loss(const Loss& loss, bool has_launcher);
  std::optional<Words> left_early(const Loss& loss);
  bool has_ended(int rank);
  Words process_ended(int rank);
  std::optional<Words> ended_process();
  std::optional<Words> silent_peer();

  Watch& watch_;
  Peers& peers_;
  std::optional<Clock::time_point> neighbour_ended_;
  bool neighbour_silent_ = false;
};

}  // namespace lockstep::comm
