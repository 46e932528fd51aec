// SPDX-License-Identifier: Apache-2.0
// For models of many small parameters, whose steps on a CPU consist of what operators cost before they compute.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::ddp {

/// slot = gradient * scale, with the bits of at::mul_out (a NaN is only some NaN), where both are small, lie on the CPU
/// in the same order and are float, double, half or bfloat16; elsewhere returns false and does nothing.
bool scale_if_small(const at::Tensor& slot, const at::Tensor& gradient, double scale);

}  // namespace lockstep::ddp
