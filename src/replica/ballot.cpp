// SPDX-License-Identifier: Apache-2.0
#include "replica/ballot.h"

#include <algorithm>

namespace lockstep::replica {
namespace {

std::int64_t supporters(const Table& table, std::size_t entry, std::int64_t digest) {
  return std::count_if(table.begin(), table.end(), [&](const auto& row) { return row[entry] == digest; });
}

}  // namespace

Ballot vote(const Table& table, std::size_t entry) {
  Ballot ballot;
  ballot.entry = entry;
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < table.size(); ++rank) {
    const auto count = supporters(table, entry, table[rank][entry]);
    const bool rival = count == most && table[rank][entry] != table[static_cast<std::size_t>(ballot.reference)][entry];
    if (count > most) {
      ballot.reference = static_cast<int>(rank);
      ballot.majority = true;
      most = count;
    } else if (rival) {
      ballot.majority = false;
    }
  }
  for (std::size_t rank = 0; rank < table.size(); ++rank) {
    if (table[rank][entry] != table[static_cast<std::size_t>(ballot.reference)][entry]) {
      ballot.minority.push_back(static_cast<int>(rank));
    }
  }
  return ballot;
}

std::vector<Ballot> disputes(const Table& table) {
  std::vector<Ballot> found;
  for (std::size_t entry = 0; entry < table[0].size(); ++entry) {
    auto ballot = vote(table, entry);
    if (!ballot.minority.empty()) {
      found.push_back(std::move(ballot));
    }
  }
  return found;
}

int healthiest(const std::vector<Ballot>& disputes, int size) {
  std::vector<int> lost(static_cast<std::size_t>(size), 0);
  for (const auto& ballot : disputes) {
    for (const auto rank : ballot.minority) {
      ++lost[static_cast<std::size_t>(rank)];
    }
  }
  return static_cast<int>(std::min_element(lost.begin(), lost.end()) - lost.begin());
}

}  // namespace lockstep::replica
