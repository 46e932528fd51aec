// SPDX-License-Identifier: Apache-2.0
// The other ranks' pulses, as this rank reads them from the store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <vector>

#include "comm/pulse.h"

namespace lockstep::comm {

class Peers {
 public:
  using Clock = std::chrono::steady_clock;

  Peers(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  void publish(const Pulse& pulse);
  /// REQUIRES: each of these ranks has published.
  void read(const std::vector<int>& ranks);

  const Pulse& pulse(int rank) const { return entries_[static_cast<std::size_t>(rank)].pulse; }
  /// How long this rank has been read without a new beat. A gap between two reads counts for little: this process may
  /// have been stopped itself.
  Clock::duration silent_for(int rank) const { return entries_[static_cast<std::size_t>(rank)].silence; }

  /// All ranks but this one, and the one that this rank looks after.
  const std::vector<int>& others() const { return others_; }
  int neighbour() const { return neighbour_; }

 private:
  struct Entry {
    Pulse pulse;
    Clock::time_point read = Clock::now();
    Clock::duration silence = Clock::duration::zero();
  };

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int neighbour_;
  std::vector<int> others_;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::comm
