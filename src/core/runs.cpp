// SPDX-License-Identifier: Apache-2.0
#include "core/runs.h"

#include <algorithm>

#include "core/check.h"

namespace lockstep::core {
namespace {

bool by_address(const Piece& a, const Piece& b) {
  return a.at[0] < b.at[0];
}

std::uintptr_t end_of(const Piece& piece, const LaneWidths& widths, std::size_t lane) {
  return piece.at[lane] + static_cast<std::uintptr_t>(piece.count) * widths[lane];
}

bool adjacent(const Piece& a, const Piece& b, const LaneWidths& widths) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (end_of(a, widths, lane) != b.at[lane]) {
      return false;
    }
  }
  return a.tag == b.tag;
}

}  // namespace

std::vector<Piece> join(std::vector<Piece> pieces, const LaneWidths& widths, std::string_view where) {
  std::erase_if(pieces, [](const Piece& piece) { return piece.count == 0; });
  if (!std::is_sorted(pieces.begin(), pieces.end(), by_address)) {
    std::sort(pieces.begin(), pieces.end(), by_address);
  }
  std::vector<Piece> runs;
  for (const auto& piece : pieces) {
    if (!runs.empty() && adjacent(runs.back(), piece, widths)) {
      runs.back().count += piece.count;
      continue;
    }
    check(runs.empty() || end_of(runs.back(), widths, 0) <= piece.at[0], where, [&] {
      return Problem{"two tensors share memory", str(end_of(runs.back(), widths, 0) - piece.at[0], " bytes of overlap"),
                     "each element once", "register a shared parameter as one tensor"};
    });
    runs.push_back(piece);
  }
  return runs;
}

}  // namespace lockstep::core
