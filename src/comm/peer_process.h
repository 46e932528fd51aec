// SPDX-License-Identifier: Apache-2.0
// Which process a rank is, so that ranks on the same machine can see at once that one has ended.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::comm {

struct PeerProcess {
  /// Machine (this boot of it) and process-id namespace: ids mean the same wherever this is equal.
  std::string machine;
  int pid = 0;
  /// In clock ticks since boot; tells apart processes that had the same id.
  std::uint64_t started = 0;

  static PeerProcess self();
  /// Of any process of this machine; 0 if there is none.
  static std::uint64_t started_at(int pid);
  static PeerProcess decode(const std::string& text);
  std::string encode() const;

  /// True if the process is known to have ended; false where it runs or where that cannot be seen from here.
  bool has_ended() const;
};

}  // namespace lockstep::comm
