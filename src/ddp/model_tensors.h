// SPDX-License-Identifier: Apache-2.0
// From a model to the two lists that everything else works on.
#pragma once

#include <vector>

#include "core/layout.h"
#include "lockstep/ddp/data_parallel.h"

namespace lockstep::ddp {

/// The tensors that take part: ignored names and undefined tensors left out, a shared tensor once, under its first
/// name. Throws InputError where a name to ignore does not exist.
ModelTensors participating(const ModelTensors& all, const std::vector<std::string>& ignore);

/// Those of them that are trained.
std::vector<NamedTensor> trainable(const std::vector<NamedTensor>& parameters);

core::TensorSpec spec_of(const NamedTensor& tensor);

}  // namespace lockstep::ddp
