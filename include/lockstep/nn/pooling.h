// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>

#include "lockstep/export.h"

namespace lockstep::nn {

/// torch::nn::MaxPool2d whose way back reads each window once, in a fixed order: every run gives the same bits, and the
/// sums of overlapping windows are fp32. That is for channels-last fp16 or bf16 tensors [batch, channels, height,
/// width] on CUDA with a number of channels that is a multiple of 8, without dilation and ceil_mode, and windows of at
/// most 15 by 15. Elsewhere it is LibTorch's own. A second derivative throws InputError where it is fused.
class LOCKSTEP_API MaxPool2dImpl : public torch::nn::MaxPool2dImpl {
 public:
  using torch::nn::MaxPool2dImpl::MaxPool2dImpl;

  at::Tensor forward(const at::Tensor& x);
};
TORCH_MODULE(MaxPool2d);

}  // namespace lockstep::nn
