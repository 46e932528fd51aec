// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "lockstep/export.h"

namespace lockstep::nn {

/// torch::nn::BatchNorm2d that can take the residual's addition and the ReLU after it along:
///
///     y = norm->forward_relu(x);               // relu(batch_norm(x))
///     y = norm->forward_relu(x, residual);     // relu(batch_norm(x) + residual)
///
/// Two passes over memory forward and two backward, summed in fp32 and in a fixed order, so that every run gives the
/// same bits. That is for training on CUDA with channels-last fp16 or bf16 tensors, a number of channels that is a
/// multiple of 8, fp32 weight, bias and running statistics (as O2 keeps them), and a fixed momentum. Elsewhere, in
/// evaluation too, it is LibTorch's own. A second derivative throws InputError where it is fused.
class LOCKSTEP_API BatchNorm2dImpl : public torch::nn::BatchNorm2dImpl {
 public:
  using torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;

  /// `residual` of x's shape, dtype and layout; undefined: none.
  at::Tensor forward_relu(const at::Tensor& x, const at::Tensor& residual = {});
};
TORCH_MODULE(BatchNorm2d);

}  // namespace lockstep::nn
