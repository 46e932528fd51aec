// SPDX-License-Identifier: Apache-2.0
// The gradients of an optimizer's parameters, and the pass over them that unscales and looks for inf and NaN.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::amp {

/// The defined gradients, in the order of the groups. fp16 and bf16 sparse ones have been coalesced, in place of the
/// parameter's gradient: a row's sum may overflow where no summand does.
std::vector<at::Tensor> gradients_of(torch::optim::Optimizer& optimizer);

/// Throws InputError, naming `where`, if a gradient is fp16.
void refuse_fp16(const std::vector<at::Tensor>& gradients, const char* where);

/// Multiplies every gradient by `factor` (one fp32 element) in place and returns one fp32 element on factor's device: 1
/// if any product is not finite, else 0. No host synchronisation. Any mixture of devices, dtypes and layouts.
at::Tensor unscale_and_check(const std::vector<at::Tensor>& gradients, const at::Tensor& factor);

/// Which tensors these are and how often each was written, so that a later look can tell whether one changed.
using GradientVersions = std::vector<std::pair<const void*, std::int64_t>>;
GradientVersions versions_of(const std::vector<at::Tensor>& gradients);

}  // namespace lockstep::amp
