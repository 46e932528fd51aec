// SPDX-License-Identifier: Apache-2.0
#include "optim/treated_step.h"

#include <ATen/ATen.h>

#include <limits>

namespace lockstep::optim {
namespace {

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

at::Tensor scale_before(const at::Tensor& grad_scale, const at::Tensor& multiplier) {
  if (!multiplier.defined()) {
    return grad_scale;
  }
  return grad_scale.defined() ? grad_scale / multiplier.to(grad_scale.device()) : multiplier.reciprocal();
}

void multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& multiplier) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) {
      parameter.grad().mul_(multiplier.to(parameter.grad().device()));
    }
  }
}

}  // namespace

FusedStep judge(const torch::optim::Optimizer& optimizer, const at::Tensor& grad_scale,
                const GradientTreatment& treatment) {
  const at::NoGradGuard no_grad;
  FusedStep step;
  step.inputs.grad_scale = scale_before(grad_scale, treatment.multiplier);
  const bool clips = treatment.clip_norm > 0;
  auto seen =
      clip_factor(parameters_of(optimizer), clips ? treatment.clip_norm : std::numeric_limits<double>::infinity(),
                  {.norm_type = treatment.norm_type, .grad_scale = step.inputs.grad_scale});
  step.inputs.found_inf = std::move(seen.found_inf);
  if (clips) {
    step.inputs.clip_factor = std::move(seen.factor);
    step.norm = std::move(seen.norm);
  }
  return step;
}

at::Tensor treat(const torch::optim::Optimizer& optimizer, const GradientTreatment& treatment) {
  const auto parameters = parameters_of(optimizer);
  if (treatment.multiplier.defined()) {
    multiply(parameters, treatment.multiplier);
  }
  return treatment.clip_norm > 0 ? clip_grad_norm_(parameters, treatment.clip_norm, {.norm_type = treatment.norm_type})
                                 : at::Tensor();
}

at::Tensor treated_step(torch::optim::Optimizer& optimizer, const GradientTreatment& treatment) {
  auto* fused = dynamic_cast<FusedOptimizer*>(&optimizer);
  if (fused == nullptr || !treatment.any()) {
    auto norm = treat(optimizer, treatment);
    optimizer.step();
    return norm;
  }
  auto step = judge(optimizer, {}, treatment);
  step.inputs.found_inf.reset();
  fused->step_fused(step.inputs);
  return step.norm;
}

}  // namespace lockstep::optim
