// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/layer_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/check.h"
#include "nn/fused.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr std::int64_t kWidest = 2048;

/// Returns {normed}, or {normed, sum} where there is a residual.
class FusedNorm : public torch::autograd::Function<FusedNorm> {
 public:
  static variable_list forward(AutogradContext* context, const Variable& x, const MaybeVariable& residual,
                               const Variable& weight, const Variable& bias, double eps) {
    const auto rows = x.numel() / x.size(-1);
    const auto statistics = at::empty({2, rows}, x.options().dtype(at::kFloat));
    const auto normed = at::empty_like(x);
    const auto sum = residual ? at::empty_like(x) : x;
    add_norm_on_cuda({x, residual.value_or(Variable()), weight, bias}, eps, {sum, normed, statistics});
    context->save_for_backward({sum, weight, statistics});
    context->saved_data["adds"] = residual.has_value();
    context->set_materialize_grads(false);
    return residual ? variable_list{normed, sum} : variable_list{normed};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    core::check(!at::GradMode::is_enabled(), "nn.LayerNorm", [] {
      return core::Problem{.what = "the gradient was asked for with a graph of its own (create_graph)",
                           .advice = "for second derivatives use torch::nn::LayerNorm"};
    });
    const auto saved = context->get_saved_variables();
    const bool adds = context->saved_data["adds"].toBool();
    const auto of_sum = adds ? gradients[1] : Variable();
    if (!gradients[0].defined()) {
      return {of_sum, of_sum, {}, {}, {}};
    }
    const NormGradients out{at::empty_like(saved[0]), at::empty_like(saved[1]), at::empty_like(saved[1])};
    norm_gradients_on_cuda(
        {packed(gradients[0]), of_sum.defined() ? packed(of_sum) : of_sum, saved[0], saved[1], saved[2]}, out);
    return {out.x, adds ? out.x : Variable(), out.weight, out.bias, {}};
  }
};

bool like(const at::Tensor& tensor, const at::Tensor& x) {
  return tensor.scalar_type() == x.scalar_type() && tensor.device() == x.device() && tensor.is_contiguous() &&
         is_aligned(tensor);
}

bool fits(const at::Tensor& x, const at::Tensor& residual, const torch::nn::LayerNormImpl& norm) {
  const auto dtype = x.scalar_type();
  const auto& shape = norm.options.normalized_shape();
  return x.is_cuda() && (dtype == at::kHalf || dtype == at::kBFloat16) && x.is_contiguous() && x.numel() > 0 &&
         is_aligned(x) && shape.size() == 1 && x.dim() > 0 && x.size(-1) == shape[0] && shape[0] % kPack == 0 &&
         shape[0] <= kWidest && norm.weight.defined() && norm.bias.defined() && like(norm.weight, x) &&
         like(norm.bias, x) && (!residual.defined() || (like(residual, x) && residual.sizes() == x.sizes()));
}

}  // namespace

at::Tensor LayerNormImpl::forward(const at::Tensor& x) {
  return forward(x, {}).normed;
}

AddedNorm LayerNormImpl::forward(const at::Tensor& x, const at::Tensor& residual) {
  if (!fits(x, residual, *this)) {
    const auto sum = residual.defined() ? x + residual : x;
    return {sum, torch::nn::LayerNormImpl::forward(sum)};
  }
  const auto results = FusedNorm::apply(x, maybe(residual), weight, bias, options.eps());
  return {residual.defined() ? results[1] : x, results[0]};
}

}  // namespace lockstep::nn
