// SPDX-License-Identifier: Apache-2.0
// From options to a store that all ranks share.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/world.h"

namespace lockstep::comm {

/// Checks the options and fills in what they leave to Lockstep: local rank and size, device, backend.
WorldOptions completed(WorldOptions options);

/// The caller's store, or a client of the one at master_addr:master_port, which rank 0 serves unless it is external.
/// Threads that this starts ignore SIGPIPE.
c10::intrusive_ptr<c10d::Store> open_store(const WorldOptions& options);

/// Rank that serves the store, or -1.
int store_host(const WorldOptions& options);

}  // namespace lockstep::comm
