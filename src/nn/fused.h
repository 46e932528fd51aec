// SPDX-License-Identifier: Apache-2.0
// Fused passes over tensors on CUDA. A build without CUDA has stand-ins that are never reached.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "nn/fused_kernels.h"

namespace lockstep::nn {

constexpr std::int64_t kPack = 8;  // elements in 16 bytes of fp16 or bf16, which a thread loads at once

/// How torch::autograd::Function takes a tensor that may be missing: it throws for an undefined one.
using MaybeVariable = std::optional<at::Tensor>;

inline MaybeVariable maybe(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeVariable(tensor) : std::nullopt;
}

/// Whether the kernels can load packs from it.
inline bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % (2 * kPack) == 0;
}

/// The tensor as the kernels take it: adjacent and aligned.
inline at::Tensor packed(const at::Tensor& tensor, at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  const auto adjacent = tensor.contiguous(format);
  return is_aligned(adjacent) ? adjacent : adjacent.clone(format);
}

/// `losses` and `log_sums`, fp32 [rows], are written: each row's loss, and the logarithm of the sum of its
/// exponentials.
void row_losses_on_cuda(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options,
                        const at::Tensor& losses, const at::Tensor& log_sums);

/// `output`, of the logits' dtype and shape, is written: the rows' gradients times `scales`, fp32 [rows].
void row_gradients_on_cuda(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options,
                           const at::Tensor& log_sums, const at::Tensor& scales, const at::Tensor& output);

/// `residual` may be undefined.
struct NormInputs {
  at::Tensor x, residual, weight, bias;
};

/// `statistics`: fp32 [2, rows], means and inverse standard deviations. Without a residual `sum` is not written.
struct NormOutputs {
  at::Tensor sum, normed, statistics;
};

void add_norm_on_cuda(const NormInputs& inputs, double eps, const NormOutputs& outputs);

/// `of_sum` may be undefined.
struct NormSaved {
  at::Tensor of_normed, of_sum, sum, weight, statistics;
};

struct NormGradients {
  at::Tensor x, weight, bias;
};

void norm_gradients_on_cuda(const NormSaved& saved, const NormGradients& gradients);

/// `gradient` [rows, width]. `of_bias` [width] is written; and `of_before`, where `before` (what the GELU took) is
/// defined.
void bias_gradient_on_cuda(const at::Tensor& gradient, const at::Tensor& before, const at::Tensor& of_before,
                           const at::Tensor& of_bias);

struct RunningStatistics {
  at::Tensor mean, variance, batches;
  double momentum;
};

/// `passed`: uint8 [rows, channels / 8], a bit for each element that the ReLU let through. `statistics`: fp32
/// [2, channels], means and inverse standard deviations.
struct BatchNormOutputs {
  at::Tensor y, passed, statistics;
};

/// y = relu(batch_norm(x) + residual); the running statistics are moved on.
void batch_norm_on_cuda(const NormInputs& inputs, const RunningStatistics& running, double eps,
                        const BatchNormOutputs& outputs);

struct BatchNormSaved {
  at::Tensor of_y, x, passed, weight, statistics;
};

/// `residual` may be undefined.
struct BatchNormGradients {
  at::Tensor x, residual, weight, bias;
};

void batch_norm_gradients_on_cuda(const BatchNormSaved& saved, const BatchNormGradients& gradients);

/// `y` and `winners` (uint8 of y's elements: which place of its window each came from) are written.
void max_pool_on_cuda(const at::Tensor& x, const MaxPoolShape& shape, const at::Tensor& y, const at::Tensor& winners);
void max_pool_gradient_on_cuda(const at::Tensor& of_y, const MaxPoolShape& shape, const at::Tensor& winners,
                               const at::Tensor& of_x);

}  // namespace lockstep::nn
