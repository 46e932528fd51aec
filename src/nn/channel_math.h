// SPDX-License-Identifier: Apache-2.0
// What BatchNorm does to one rank's tensors, channel by channel, made of ATen's kernels. Channels are dimension 1.
// Statistics are fp32, or double for double input. Tensors may be empty.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::nn {

/// While it lives, nothing is recorded for autograd and autocast changes no dtype.
struct PlainMath {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// (C) each.
struct Moments {
  at::Tensor mean;
  at::Tensor var;  ///< biased
};

/// Dtype of the statistics of such an input.
at::ScalarType statistics_dtype(const at::Tensor& input);

/// Values a channel.
std::int64_t values_per_channel(const at::Tensor& input);

/// `tensor` dense in the memory format that suits `like`, whatever its own strides are: kernels that read two tensors
/// assume the same order in both.
at::Tensor laid_out(const at::Tensor& tensor, const at::Tensor& like);

/// Of one rank's values. Zero where there are none.
Moments channel_moments(const at::Tensor& input);

/// (input - mean) * invstd * weight + bias, in the input's dtype and layout. `weight` and `bias` may be undefined.
at::Tensor normalised(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const Moments& moments,
                      const at::Tensor& invstd, double eps);

struct GradientSums {
  at::Tensor sums;    ///< (2, C): of the output's gradient, and of its product with (input - mean)
  at::Tensor weight;  ///< (C), undefined where there is no weight, as the next
  at::Tensor bias;
};

/// Of one rank: the sums, and the gradients of weight and bias that they are.
GradientSums gradient_sums(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& mean, const at::Tensor& invstd);

/// The input's gradient. `sums`: gradient_sums over all ranks; `counts`: int32, values a channel of each rank.
at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                          const at::Tensor& mean, const at::Tensor& invstd, const at::Tensor& sums,
                          const at::Tensor& counts);

}  // namespace lockstep::nn
