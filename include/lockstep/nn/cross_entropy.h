// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/loss.h>
#include <torch/nn/options/loss.h>
#include <torch/nn/pimpl.h>

#include "lockstep/export.h"

namespace lockstep::nn {

/// Cross-entropy that reads fp16 and bf16 logits as they are and computes in fp32: neither an fp32 copy of the logits
/// nor their log-softmax is ever in memory, which for a language model saves several times what the logits take.
///
/// `logits` [rows, classes], `targets` int64 [rows]; `options` as torch's. The loss is fp32 (fp64 for fp64 logits),
/// under autocast too; the gradient has the logits' dtype. One pass forward, one backward, the same bits in every run.
///
/// On CUDA a target that is neither a class nor `ignore_index` makes the loss NaN. The gradient has no gradient of its
/// own: a second derivative throws InputError. On the CPU, and for class weights, probabilities as targets and logits
/// of other shapes, it is LibTorch's own loss of the widened logits.
LOCKSTEP_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                      const torch::nn::CrossEntropyLossOptions& options = {});

/// torch::nn::CrossEntropyLoss, computed so.
class LOCKSTEP_API CrossEntropyLossImpl : public torch::nn::CrossEntropyLossImpl {
 public:
  using torch::nn::CrossEntropyLossImpl::CrossEntropyLossImpl;
  at::Tensor forward(const at::Tensor& input, const at::Tensor& target);
};
TORCH_MODULE(CrossEntropyLoss);

}  // namespace lockstep::nn
