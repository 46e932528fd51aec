// SPDX-License-Identifier: Apache-2.0
// LAMB's options, state and checkpoints, and the plain loop that the fused passes are compared with.
#include "lockstep/optim/lamb.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/serialize.h>

#include <cmath>

#include "optim/schema.h"

namespace lockstep::optim {
namespace {

void plain_step(const at::Tensor& parameter, LambParamState& state, const LambOptions& options) {
  const auto [beta1, beta2] = options.betas();
  const auto& gradient = parameter.grad();
  state.step(state.step() + 1);
  const auto count = static_cast<double>(state.step());
  state.exp_avg().mul_(beta1).add_(gradient, 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  const auto denominator = (state.exp_avg_sq().sqrt() / std::sqrt(1 - std::pow(beta2, count))).add_(options.eps());
  const auto direction = (state.exp_avg() / (1 - std::pow(beta1, count))).div_(denominator);
  direction.add_(parameter, options.weight_decay());
  const bool adapt = options.always_adapt() || options.weight_decay() != 0;
  const auto weights = parameter.norm().item<double>();
  const auto directions = direction.norm().item<double>();
  const double ratio = adapt && weights > 0 && directions > 0 ? weights / directions : 1;
  parameter.add_(direction, -options.lr() * ratio);
}

}  // namespace

LambOptions::LambOptions(double lr) : lr_(lr) {}

double LambOptions::get_lr() const {
  return lr();
}

void LambOptions::set_lr(const double lr) {
  this->lr(lr);
}

void LambOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(always_adapt);
}

void LambOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, always_adapt);
}

void LambParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg_sq);
}

void LambParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, exp_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, exp_avg_sq);
}

PlainLamb::PlainLamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, LambOptions defaults)
    : Optimizer(groups, std::make_unique<LambOptions>(defaults)) {
  make_schema<LambOptions>()->recipe(defaults);
}

PlainLamb::PlainLamb(std::vector<at::Tensor> parameters, LambOptions defaults)
    : PlainLamb({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

at::Tensor PlainLamb::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  for (auto& group : param_groups_) {
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) {
        continue;
      }
      auto& state = state_[parameter.unsafeGetTensorImpl()];
      if (!state) {
        auto made = std::make_unique<LambParamState>();
        made->exp_avg(at::zeros_like(parameter));
        made->exp_avg_sq(at::zeros_like(parameter));
        state = std::move(made);
      }
      plain_step(parameter, static_cast<LambParamState&>(*state), static_cast<LambOptions&>(group.options()));
    }
  }
  return loss;
}

void PlainLamb::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LambParamState, LambOptions>(archive, *this);
}

void PlainLamb::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LambParamState, LambOptions>(archive, *this);
}

}  // namespace lockstep::optim
