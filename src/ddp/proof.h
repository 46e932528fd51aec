// SPDX-License-Identifier: Apache-2.0
// Are the replicas equal, bit for bit? One fingerprint per tensor and rank is exchanged.
#pragma once

#include "lockstep/comm/world.h"
#include "lockstep/ddp/data_parallel.h"

namespace lockstep::ddp {

/// Local: one number for all tensors, their order included.
std::uint64_t combined_digest(const ModelTensors& tensors);

/// Collective: empty where all ranks are equal, else a text that names the first tensor that differs and where, the
/// same on every rank.
std::string first_difference(const World& world, const ModelTensors& tensors);

}  // namespace lockstep::ddp
