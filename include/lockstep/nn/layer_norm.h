// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "lockstep/export.h"

namespace lockstep::nn {

/// What a residual block needs: the stream that goes on, and what its next part reads.
struct AddedNorm {
  at::Tensor sum;
  at::Tensor normed;
};

/// torch::nn::LayerNorm that can also add a residual on its way:
///
///     auto [sum, normed] = norm->forward(x, residual);     // sum = x + residual, normed = layer_norm(sum)
///
/// Forward is one pass over memory, and so is backward: it makes the input's gradient and the sums of the weight's and
/// the bias's together, in fp32 and in a fixed order, so that every run gives the same bits. That is for contiguous
/// fp16 and bf16 tensors on CUDA, with weight and bias of the same dtype, normalised over a last dimension that is a
/// multiple of 8 and at most 2048. Elsewhere it is LibTorch's own. A second derivative throws InputError where it is
/// fused.
class LOCKSTEP_API LayerNormImpl : public torch::nn::LayerNormImpl {
 public:
  using torch::nn::LayerNormImpl::LayerNormImpl;

  at::Tensor forward(const at::Tensor& x);
  /// `residual` of x's shape and dtype; undefined: none, and `sum` is `x`.
  AddedNorm forward(const at::Tensor& x, const at::Tensor& residual);
};
TORCH_MODULE(LayerNorm);

}  // namespace lockstep::nn
