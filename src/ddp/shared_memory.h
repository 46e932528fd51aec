// SPDX-License-Identifier: Apache-2.0
// Autograd may hand several parameters views of one tensor as their gradients: those of `a.view(n) + b.view(n)` are.
// Whoever then scales one in place scales both, and the next backward adds to both twice.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::ddp {

/// Gives gradients that share memory with an earlier one of the list memory of their own. Costs nothing where none
/// does. Whole storages that several gradients lie in side by side, such as a user's flat buffer, stay as they are.
void separate(const std::vector<at::Tensor*>& gradients);

}  // namespace lockstep::ddp
