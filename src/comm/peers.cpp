// SPDX-License-Identifier: Apache-2.0
#include "comm/peers.h"

#include <algorithm>

#include "core/check.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

namespace {

std::string key(int rank) {
  return core::str("pulse/", rank);
}

}  // namespace

Peers::Peers(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), neighbour_((rank + 1) % size), entries_(static_cast<std::size_t>(size)) {
  for (int other = 0; other < size; ++other) {
    if (other != rank) {
      others_.push_back(other);
    }
  }
}

void Peers::publish(const Pulse& pulse) {
  store_->set(key(rank_), pulse.encode());
}

void Peers::read(const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) {
    keys.push_back(key(rank));
  }
  const auto values = store_->multiGet(keys);
  const auto now = Clock::now();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    auto& entry = entries_[static_cast<std::size_t>(ranks[i])];
    auto pulse = Pulse::decode(std::string(values[i].begin(), values[i].end()));
    const bool beats = pulse.beat != entry.pulse.beat;
    entry.silence =
        beats ? Clock::duration::zero() : entry.silence + std::min<Clock::duration>(now - entry.read, 500ms);
    entry.read = now;
    entry.pulse = std::move(pulse);
  }
}

}  // namespace lockstep::comm
