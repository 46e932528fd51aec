// SPDX-License-Identifier: Apache-2.0
// The ranks of a new world wait for each other and compare what they were told.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <vector>

#include "comm/peer_process.h"
#include "comm/watch.h"
#include "lockstep/comm/world.h"

namespace lockstep::comm {

/// Blocks until all ranks are there, and returns their processes in rank order. Throws WorldError that names the
/// missing ranks after the timeout, or the words of a rank that failed meanwhile; InputError where ranks were told
/// different things.
std::vector<PeerProcess> arrive(const c10::intrusive_ptr<c10d::Store>& store, const WorldOptions& options,
                                Watch& watch);

}  // namespace lockstep::comm
