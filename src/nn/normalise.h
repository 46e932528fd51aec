// SPDX-License-Identifier: Apache-2.0
// Normalisation by statistics of all ranks, with its gradient.
#pragma once

#include "lockstep/comm/world.h"
#include "nn/shared_statistics.h"

namespace lockstep::nn {

/// `weight` and `bias` may be undefined. Backward issues one all-reduce if the input's gradient is wanted. A second
/// derivative throws InputError.
at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const SharedStatistics& statistics, double eps, const World& world, const CallLabel& label);

}  // namespace lockstep::nn
