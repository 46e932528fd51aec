// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "lockstep/export.h"

namespace lockstep::nn {

/// torch::nn::Linear that adds its bias inside the matrix product, and can be followed by a GELU:
///
///     auto y = linear->forward(x);            // [..., in_features] -> [..., out_features]
///     auto z = linear->forward_gelu(x);       // gelu(linear(x)), with the tanh approximation
///
/// LibTorch's module does the first for matrices only, and adds the bias to longer shapes in a pass of its own;
/// Python's does not. Backward sums the bias's gradient in fp32 and in a fixed order, together with the way through the
/// GELU. That is for contiguous fp16 and bf16 tensors on CUDA outside autocast, with weight and bias of the same dtype
/// and out_features a multiple of 8. Elsewhere it is at::linear and at::gelu. A second derivative throws InputError
/// where it is fused.
class LOCKSTEP_API LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;

  at::Tensor forward(const at::Tensor& x);
  at::Tensor forward_gelu(const at::Tensor& x);
};
TORCH_MODULE(Linear);

}  // namespace lockstep::nn
