// SPDX-License-Identifier: Apache-2.0
// From two states that differ to a report that says where, and to states that are equal again.
#pragma once

#include "lockstep/comm/world.h"
#include "replica/entry.h"

namespace lockstep::replica {

/// Collective: one small exchange.
bool equal_on_all_ranks(const World& world, const Entries& entries);

/// True if the rows (of a two-dimensional tensor on the CPU) are all the same.
bool rows_are_equal(const at::Tensor& rows);

/// Collective: compares the ranks' entries as they are now. The report is the same on every rank; one without
/// differences and with an empty `structure` says that all is equal. Finds the element of the first `located` tensors.
ReplicaReport diagnose(const World& world, const Entries& entries, std::int64_t step, std::size_t located = 8);

/// Collective, for ranks whose entries are alike: copies all of them from `root`, in place.
void copy_from(const World& world, const Entries& entries, int root);

}  // namespace lockstep::replica
