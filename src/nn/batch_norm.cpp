// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/batch_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/check.h"
#include "nn/fused.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// relu(batch_norm(x) + residual), and the running statistics moved on.
class FusedBatchNorm : public torch::autograd::Function<FusedBatchNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const Variable& x, const MaybeVariable& residual,
                            const Variable& weight, const Variable& bias, const RunningStatistics& running,
                            double eps) {
    const auto statistics = at::empty({2, x.size(1)}, weight.options());
    const auto passed = at::empty({x.numel() / kPack}, x.options().dtype(at::kByte));
    const auto y = at::empty_like(x);
    batch_norm_on_cuda({x, residual.value_or(Variable()), weight, bias}, running, eps, {y, passed, statistics});
    context->save_for_backward({x, passed, weight, statistics});
    context->saved_data["adds"] = residual.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    core::check(!at::GradMode::is_enabled(), "nn.BatchNorm2d", [] {
      return core::Problem{.what = "the gradient was asked for with a graph of its own (create_graph)",
                           .advice = "for second derivatives use torch::nn::BatchNorm2d"};
    });
    const auto saved = context->get_saved_variables();
    const bool adds = context->saved_data["adds"].toBool();
    const auto of_y = packed(gradients[0], at::MemoryFormat::ChannelsLast);
    const BatchNormGradients out{at::empty_like(saved[0]), adds ? at::empty_like(saved[0]) : at::Tensor(),
                                 at::empty_like(saved[2]), at::empty_like(saved[2])};
    batch_norm_gradients_on_cuda({of_y, saved[0], saved[1], saved[2], saved[3]}, out);
    return {out.x, out.residual, out.weight, out.bias, {}, {}};
  }
};

bool channels_last(const at::Tensor& tensor) {
  return tensor.dim() == 4 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast) && is_aligned(tensor);
}

bool fp32_on(c10::Device device, const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.device() == device && tensor.is_contiguous();
}

bool input_fits(const at::Tensor& x, const at::Tensor& residual) {
  const auto dtype = x.scalar_type();
  const bool alike = !residual.defined() || (residual.scalar_type() == dtype && residual.device() == x.device() &&
                                             residual.sizes() == x.sizes() && channels_last(residual));
  return x.is_cuda() && (dtype == at::kHalf || dtype == at::kBFloat16) && channels_last(x) && x.size(1) % kPack == 0 &&
         x.numel() > x.size(1) && alike;
}

bool fits(const at::Tensor& x, const at::Tensor& residual, const torch::nn::BatchNorm2dImpl& norm) {
  return norm.is_training() && norm.options.track_running_stats() && norm.options.momentum().has_value() &&
         input_fits(x, residual) && x.size(1) == norm.options.num_features() && fp32_on(x.device(), norm.weight) &&
         fp32_on(x.device(), norm.bias) && fp32_on(x.device(), norm.running_mean) &&
         fp32_on(x.device(), norm.running_var) && norm.num_batches_tracked.device() == x.device();
}

}  // namespace

at::Tensor BatchNorm2dImpl::forward_relu(const at::Tensor& x, const at::Tensor& residual) {
  if (!fits(x, residual, *this)) {
    const auto normed = forward(x);
    return (residual.defined() ? normed + residual : normed).relu();
  }
  const RunningStatistics running{running_mean, running_var, num_batches_tracked, *options.momentum()};
  const auto y = FusedBatchNorm::apply(x, maybe(residual), weight, bias, running, options.eps());
  for (const auto& written : {running_mean, running_var, num_batches_tracked}) {
    written.unsafeGetTensorImpl()->bump_version();
  }
  return y;
}

}  // namespace lockstep::nn
