// SPDX-License-Identifier: Apache-2.0
#include "nn/channel_math.h"

#include <ATen/ATen.h>

#include <array>

namespace lockstep::nn {
namespace {

// (C) as (1, C, 1, ...).
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

at::Tensor in_dtype_of(const at::Tensor& weight, const at::Tensor& statistics) {
  return weight.defined() ? weight.to(statistics.scalar_type()) : weight;
}

}  // namespace

at::ScalarType statistics_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::int64_t values_per_channel(const at::Tensor& input) {
  return input.numel() / input.size(1);
}

at::Tensor laid_out(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.contiguous(like.suggest_memory_format());
}

Moments channel_moments(const at::Tensor& input) {
  const auto zeros = [&] { return at::zeros({input.size(1)}, input.options().dtype(statistics_dtype(input))); };
  if (input.numel() == 0) {
    return {zeros(), zeros()};
  }
  if (input.is_cuda()) {
    const auto [mean, var] = at::batch_norm_update_stats(input, {}, {}, /*momentum=*/0);
    return {mean, var};
  }
  // On the CPU, results are rounded to the dtype of the running statistics.
  const auto [mean, var] = at::batch_norm_update_stats(input, zeros(), zeros(), /*momentum=*/0);
  return {mean, var};
}

at::Tensor normalised(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const Moments& moments,
                      const at::Tensor& invstd, double eps) {
  if (input.numel() == 0) {
    return at::empty_like(input);
  }
  const auto scale = in_dtype_of(weight, invstd);
  const auto shift = in_dtype_of(bias, invstd);
  if (input.is_cuda()) {
    return at::batch_norm_elemt(input, scale, shift, moments.mean, invstd, eps);
  }
  return std::get<0>(
      at::native_batch_norm(input, scale, shift, moments.mean, moments.var, /*training=*/false, /*momentum=*/0, eps));
}

namespace {

GradientSums sums_on_cuda(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& scale,
                          const at::Tensor& mean, const at::Tensor& invstd) {
  const bool affine = scale.defined();
  const auto [sum, product, weight, bias] =
      at::batch_norm_backward_reduce(gradient, input, mean, invstd, scale, /*input_g=*/true, affine, affine);
  return {at::stack({sum, product}), weight, bias};
}

}  // namespace

GradientSums gradient_sums(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& mean, const at::Tensor& invstd) {
  const auto scale = in_dtype_of(weight, invstd);
  if (input.is_cuda() && input.numel() > 0) {
    return sums_on_cuda(gradient, input, scale, mean, invstd);
  }
  GradientSums result{at::zeros({2, mean.numel()}, mean.options()), {}, {}};
  if (input.numel() > 0) {
    // With ones in the place of the inverse deviation, the weight's gradient is the second sum.
    const auto parts =
        at::native_batch_norm_backward(gradient, input, {}, {}, {}, mean, at::ones_like(mean),
                                       /*train=*/true, /*eps=*/0, std::array<bool, 3>{false, true, true});
    result.sums[0].copy_(std::get<2>(parts));
    result.sums[1].copy_(std::get<1>(parts));
  }
  if (weight.defined()) {
    result.weight = result.sums[1] * invstd;
    result.bias = result.sums[0].clone();
  }
  return result;
}

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                          const at::Tensor& mean, const at::Tensor& invstd, const at::Tensor& sums,
                          const at::Tensor& counts) {
  if (input.numel() == 0) {
    return at::empty_like(input);
  }
  const auto scale = in_dtype_of(weight, invstd);
  if (input.is_cuda()) {
    return at::batch_norm_backward_elemt(gradient, input, mean, invstd, scale, sums[0], sums[1], counts);
  }
  const auto means = sums / counts.sum().to(sums.scalar_type());
  const auto factor = scale.defined() ? invstd * scale : invstd;
  const auto slope = factor * invstd * invstd * means[1];
  auto result = input.to(mean.scalar_type()).sub(by_channel(mean, input));
  result.mul_(by_channel(slope.neg(), input)).sub_(by_channel(factor * means[0], input));
  result.addcmul_(gradient.to(mean.scalar_type()), by_channel(factor, input));
  return result.to(input.scalar_type());
}

}  // namespace lockstep::nn
