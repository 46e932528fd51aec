// SPDX-License-Identifier: Apache-2.0
// Are the replicas equal, bit for bit? What src/replica/ does, for a model's tensors alone.
#pragma once

#include <string>

#include "lockstep/comm/world.h"
#include "lockstep/ddp/data_parallel.h"
#include "replica/entry.h"

namespace lockstep::ddp {

/// Parameters, then buffers.
replica::Entries entries_of(const ModelTensors& tensors);

/// Collective: empty where all ranks are equal, else a text that names the first tensor that differs and where, the
/// same on every rank.
std::string first_difference(const World& world, const ModelTensors& tensors);

}  // namespace lockstep::ddp
