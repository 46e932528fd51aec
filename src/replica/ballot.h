// SPDX-License-Identifier: Apache-2.0
// Who is right? Votes over digests, without tensors or ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::replica {

/// Digests of all ranks: [rank][entry].
using Table = std::vector<std::vector<std::int64_t>>;

/// The vote over one entry.
struct Ballot {
  std::size_t entry = 0;
  int reference = 0;          // lowest rank of the largest group of equal digests; of several such, the lowest
  bool majority = false;      // no other group is as large
  std::vector<int> minority;  // ranks outside of that group; empty where all agree
};

Ballot vote(const Table& table, std::size_t entry);

/// The votes that were not unanimous, in the entries' order.
std::vector<Ballot> disputes(const Table& table);

/// The rank that is in the fewest minorities, the lowest of several.
int healthiest(const std::vector<Ballot>& disputes, int size);

}  // namespace lockstep::replica
