// SPDX-License-Identifier: Apache-2.0
// What a rank tells the others five times a second: that it lives, and which collective it is in, group by group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::comm {

/// One group of ranks, seen from one of its members.
struct GroupPulse {
  /// Most signatures told.
  static constexpr std::size_t kWindow = 32;

  std::string group;
  /// Collectives called so far.
  std::uint64_t called = 0;
  /// Number of the oldest collective that is not done; 0: none.
  std::uint64_t pending = 0;
  /// The rank has let go of this group.
  bool left = false;
  /// Number of the call that the first signature belongs to. The window starts shortly before the pending call, since
  /// other ranks may be a few behind; where nothing is pending it holds the last calls.
  std::uint64_t first = 1;
  std::vector<std::uint32_t> signatures = {};
  /// Texts of the oldest pending and of the last call.
  std::string pending_text = {};
  std::string last_text = {};

  std::optional<std::uint32_t> signature_of(std::uint64_t number) const;

  /// Text of call `number` if it is one of the two known, else its number.
  std::string text_of(std::uint64_t number) const;
};

struct Pulse {
  std::uint64_t beat = 0;
  /// The rank has let go of the whole world and beats no more.
  bool left = false;
  std::vector<GroupPulse> groups = {};

  const GroupPulse* find(const std::string& group) const;

  std::string encode() const;
  static Pulse decode(const std::string& text);
};

}  // namespace lockstep::comm
