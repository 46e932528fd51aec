// SPDX-License-Identifier: Apache-2.0
// Copies one rank's tensors to all: the live storages, never an exported copy of them.
#pragma once

#include "lockstep/comm/world.h"
#include "lockstep/ddp/data_parallel.h"

namespace lockstep::ddp {

/// Collective. Small tensors travel together, a flat message per device, in logical order: ranks may lay a
/// tensor out differently. Values are written in place and bump version counters on every rank but `root`.
void broadcast_tensors(const World& world, const std::vector<NamedTensor>& tensors, int root, const std::string& label);

}  // namespace lockstep::ddp
