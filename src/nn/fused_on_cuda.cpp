// SPDX-License-Identifier: Apache-2.0
// Fused passes with torch's device and stream.
#include <ATen/ops/empty.h>

#include "core/on_cuda.h"
#include "nn/fused.h"

namespace lockstep::nn {
namespace {

using core::launch_on;
using core::multiprocessors;

Element element_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return Element::fp16;
    case at::kBFloat16:
      return Element::bf16;
    default:
      return Element::fp32;
  }
}

LossRows rows_of(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options) {
  return {.logits = logits.const_data_ptr(),
          .targets = targets.const_data_ptr<std::int64_t>(),
          .rows = logits.size(0),
          .classes = logits.size(1),
          .element = element_of(logits.scalar_type()),
          .options = options};
}

NormRows norm_rows(const at::Tensor& x, const at::Tensor& weight) {
  return {.rows = x.numel() / x.size(-1),
          .width = x.size(-1),
          .element = element_of(x.scalar_type()),
          .weight = weight.const_data_ptr()};
}

const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

BatchNormShape batch_norm_shape(const at::Tensor& x) {
  BatchNormShape shape{.rows = x.numel() / x.size(1), .channels = x.size(1), .element = element_of(x.scalar_type())};
  choose_batch_norm_blocks(shape, multiprocessors(x.get_device()));
  return shape;
}

at::Tensor parts_for(const BatchNormShape& shape, const at::Tensor& like) {
  return at::empty({2, shape.blocks, shape.channels}, like.options());
}

}  // namespace

void row_losses_on_cuda(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options,
                        const at::Tensor& losses, const at::Tensor& log_sums) {
  launch_on(logits.get_device(), [&](cudaStream_t stream) {
    launch_row_losses(rows_of(logits, targets, options), losses.mutable_data_ptr<float>(),
                      log_sums.mutable_data_ptr<float>(), stream);
  });
}

void row_gradients_on_cuda(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options,
                           const at::Tensor& log_sums, const at::Tensor& scales, const at::Tensor& output) {
  launch_on(logits.get_device(), [&](cudaStream_t stream) {
    launch_row_gradients(rows_of(logits, targets, options), log_sums.const_data_ptr<float>(),
                         scales.const_data_ptr<float>(), output.mutable_data_ptr(), stream);
  });
}

void add_norm_on_cuda(const NormInputs& inputs, double eps, const NormOutputs& outputs) {
  const auto rows = norm_rows(inputs.x, inputs.weight);
  auto* means = outputs.statistics.mutable_data_ptr<float>();
  const bool adds = inputs.residual.defined();
  const AddNorm pass{.x = inputs.x.const_data_ptr(),
                     .residual = data_or_null(inputs.residual),
                     .bias = inputs.bias.const_data_ptr(),
                     .eps = static_cast<float>(eps),
                     .sum = adds ? outputs.sum.mutable_data_ptr() : nullptr,
                     .normed = outputs.normed.mutable_data_ptr(),
                     .means = means,
                     .inverse_deviations = means + rows.rows};
  launch_on(inputs.x.get_device(), [&](cudaStream_t stream) { launch_add_norm(rows, pass, stream); });
}

void norm_gradients_on_cuda(const NormSaved& saved, const NormGradients& gradients) {
  const auto rows = norm_rows(saved.sum, saved.weight);
  const auto* means = saved.statistics.const_data_ptr<float>();
  const int blocks = norm_blocks(rows, multiprocessors(saved.sum.get_device()));
  const auto parts = at::empty({2, blocks, rows.width}, saved.statistics.options());
  const NormBackward pass{.of_normed = saved.of_normed.const_data_ptr(),
                          .of_sum = data_or_null(saved.of_sum),
                          .sum = saved.sum.const_data_ptr(),
                          .means = means,
                          .inverse_deviations = means + rows.rows,
                          .of_x = gradients.x.mutable_data_ptr(),
                          .of_weight = gradients.weight.mutable_data_ptr(),
                          .of_bias = gradients.bias.mutable_data_ptr(),
                          .parts = parts.mutable_data_ptr<float>(),
                          .blocks = blocks};
  launch_on(saved.sum.get_device(), [&](cudaStream_t stream) { launch_norm_backward(rows, pass, stream); });
}

void bias_gradient_on_cuda(const at::Tensor& gradient, const at::Tensor& before, const at::Tensor& of_before,
                           const at::Tensor& of_bias) {
  const auto rows = gradient.size(0), width = gradient.size(1);
  const int blocks = bias_gradient_blocks(rows, width, multiprocessors(gradient.get_device()));
  const auto parts = at::empty({blocks > 1 ? blocks : 0, width}, gradient.options().dtype(at::kFloat));
  const bool gelu = before.defined();
  const BiasGradient pass{.gradient = gradient.const_data_ptr(),
                          .before = data_or_null(before),
                          .of_before = gelu ? of_before.mutable_data_ptr() : nullptr,
                          .of_bias = of_bias.mutable_data_ptr(),
                          .rows = rows,
                          .width = width,
                          .element = element_of(gradient.scalar_type()),
                          .blocks = blocks,
                          .parts = parts.mutable_data_ptr<float>()};
  launch_on(gradient.get_device(), [&](cudaStream_t stream) { launch_bias_gradient(pass, stream); });
}

void batch_norm_on_cuda(const NormInputs& inputs, const RunningStatistics& running, double eps,
                        const BatchNormOutputs& outputs) {
  const auto shape = batch_norm_shape(inputs.x);
  const auto parts = parts_for(shape, outputs.statistics);
  auto* means = outputs.statistics.mutable_data_ptr<float>();
  const BatchNormForward pass{.x = inputs.x.const_data_ptr(),
                              .residual = data_or_null(inputs.residual),
                              .weight = inputs.weight.const_data_ptr<float>(),
                              .bias = inputs.bias.const_data_ptr<float>(),
                              .eps = eps,
                              .momentum = running.momentum,
                              .y = outputs.y.mutable_data_ptr(),
                              .passed = outputs.passed.mutable_data_ptr<std::uint8_t>(),
                              .means = means,
                              .inverse_deviations = means + shape.channels,
                              .running_means = running.mean.mutable_data_ptr<float>(),
                              .running_variances = running.variance.mutable_data_ptr<float>(),
                              .batches = running.batches.mutable_data_ptr<std::int64_t>()};
  launch_on(inputs.x.get_device(),
            [&](cudaStream_t stream) { launch_batch_norm(shape, pass, parts.mutable_data_ptr<float>(), stream); });
}

void batch_norm_gradients_on_cuda(const BatchNormSaved& saved, const BatchNormGradients& gradients) {
  const auto shape = batch_norm_shape(saved.x);
  const auto parts = parts_for(shape, saved.statistics);
  const auto* means = saved.statistics.const_data_ptr<float>();
  const BatchNormBackward pass{
      .of_y = saved.of_y.const_data_ptr(),
      .x = saved.x.const_data_ptr(),
      .passed = saved.passed.mutable_data_ptr<std::uint8_t>(),
      .weight = saved.weight.const_data_ptr<float>(),
      .means = means,
      .inverse_deviations = means + shape.channels,
      .of_x = gradients.x.mutable_data_ptr(),
      .of_residual = gradients.residual.defined() ? gradients.residual.mutable_data_ptr() : nullptr,
      .of_weight = gradients.weight.mutable_data_ptr<float>(),
      .of_bias = gradients.bias.mutable_data_ptr<float>()};
  launch_on(saved.x.get_device(), [&](cudaStream_t stream) {
    launch_batch_norm_backward(shape, pass, parts.mutable_data_ptr<float>(), stream);
  });
}

void max_pool_on_cuda(const at::Tensor& x, const MaxPoolShape& shape, const at::Tensor& y, const at::Tensor& winners) {
  auto typed = shape;
  typed.element = element_of(x.scalar_type());
  launch_on(x.get_device(), [&](cudaStream_t stream) {
    launch_max_pool(typed, x.const_data_ptr(), y.mutable_data_ptr(), winners.mutable_data_ptr(), stream);
  });
}

void max_pool_gradient_on_cuda(const at::Tensor& of_y, const MaxPoolShape& shape, const at::Tensor& winners,
                               const at::Tensor& of_x) {
  auto typed = shape;
  typed.element = element_of(of_y.scalar_type());
  launch_on(of_y.get_device(), [&](cudaStream_t stream) {
    launch_max_pool_gradient(typed, of_y.const_data_ptr(), winners.const_data_ptr(), of_x.mutable_data_ptr(), stream);
  });
}

}  // namespace lockstep::nn
