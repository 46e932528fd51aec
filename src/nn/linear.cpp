// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/check.h"
#include "nn/fused.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr const char* kTanh = "tanh";

at::Tensor as_rows(const at::Tensor& tensor) {
  return tensor.view({-1, tensor.size(-1)});
}

/// x W^T + b, and with `gelu` the GELU of that.
class FusedLinear : public torch::autograd::Function<FusedLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const Variable& x, const Variable& weight, const Variable& bias,
                            bool gelu) {
    const auto before = at::addmm(bias, as_rows(x), weight.t());
    context->save_for_backward({x, weight, gelu ? before : at::Tensor()});
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return at::_unsafe_view(gelu ? at::gelu(before, kTanh) : before, shape);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    core::check(!at::GradMode::is_enabled(), "nn.Linear", [] {
      return core::Problem{.what = "the gradient was asked for with a graph of its own (create_graph)",
                           .advice = "for second derivatives use torch::nn::Linear"};
    });
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &before = saved[2];
    const auto gradient = as_rows(packed(gradients[0]));
    const auto of_bias = at::empty({weight.size(0)}, weight.options());
    const auto of_before = before.defined() ? at::empty_like(before) : gradient;
    bias_gradient_on_cuda(gradient, before, of_before, of_bias);
    const auto of_x = context->needs_input_grad(0) ? at::mm(of_before, weight).view(x.sizes()) : Variable();
    return {of_x, at::mm(of_before.t(), as_rows(x)), of_bias, {}};
  }
};

bool fits(const at::Tensor& x, const torch::nn::LinearImpl& linear) {
  const auto dtype = x.scalar_type();
  const auto alike = [&](const at::Tensor& t) {
    return t.defined() && t.scalar_type() == dtype && t.device() == x.device() && t.is_contiguous();
  };
  return x.is_cuda() && (dtype == at::kHalf || dtype == at::kBFloat16) &&
         !at::autocast::is_autocast_enabled(at::kCUDA) && x.is_contiguous() && x.numel() > 0 && alike(linear.weight) &&
         alike(linear.bias) && x.size(-1) == linear.weight.size(1) && linear.weight.size(0) % kPack == 0;
}

}  // namespace

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  return fits(x, *this) ? FusedLinear::apply(x, weight, bias, false) : at::linear(x, weight, bias);
}

at::Tensor LinearImpl::forward_gelu(const at::Tensor& x) {
  return fits(x, *this) ? FusedLinear::apply(x, weight, bias, true) : at::gelu(at::linear(x, weight, bias), kTanh);
}

}  // namespace lockstep::nn
