// SPDX-License-Identifier: Apache-2.0
// Adjacent tensors as one run of memory, so that a pass over a model's arenas is a pass over a few long spans. Works on
// addresses alone: no tensor, no allocation of data.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::core {

/// The most places in which the same elements can lie: a weight, its low precision copy, its gradient, three states.
inline constexpr std::size_t kLanes = 6;

/// Elements that lie in several places (lanes) in the same order. A lane that is not used is 0.
struct Piece {
  std::array<std::uintptr_t, kLanes> at{};  // address in each lane
  std::int64_t count = 0;                   // elements
  std::uint64_t tag = 0;                    // pieces of different tags are never joined
};

/// Bytes of one element in each lane; 0 where the lane is not used.
using LaneWidths = std::array<std::uint8_t, kLanes>;

/// Sorts pieces by their address in the first lane, drops empty ones, and joins neighbours that are adjacent in every
/// lane. Throws InputError in the name of `where` if two pieces overlap in the first lane: they would be written twice.
std::vector<Piece> join(std::vector<Piece> pieces, const LaneWidths& widths, std::string_view where);

}  // namespace lockstep::core
