// SPDX-License-Identifier: Apache-2.0
// From options to a store that all ranks share.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/world.h"

namespace lockstep::comm {

/// Checks the options and fills in what they leave to Lockstep: local rank and size, device, backend.
WorldOptions completed(WorldOptions options);

/// A part of a store that only the ranks of this world use: of the caller's store, or of the one at
/// master_addr:master_port, which rank 0 serves unless it is external. Waits for the server, at most the timeout.
c10::intrusive_ptr<c10d::Store> meet(const WorldOptions& options);

/// Rank that serves the store, or -1.
int store_host(const WorldOptions& options);

}  // namespace lockstep::comm
