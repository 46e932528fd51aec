// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "amp/amp_impl.h"
#include "core/check.h"
#include "lockstep/amp/opt_level.h"

namespace lockstep::amp {
namespace {

using core::check;
using core::Problem;
using core::str;

constexpr const char* kInitialize = "amp.initialize";

void check_optimizer(const torch::optim::Optimizer& optimizer, std::size_t index, const ModelSet& models) {
  check(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr, kInitialize, [] {
    return Problem{.what = "LBFGS evaluates the loss again inside its step, which a scaled loss does not allow",
                   .advice = "use a first-order optimizer"};
  });
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      check(models.name_of(parameters[i]) != nullptr, kInitialize, [&] {
        return Problem{str("optimizer ", index, " was built for tensors that are not the models' parameters"),
                       str("tensor ", i, " of group ", g, ", shape ", parameters[i].sizes()),
                       "parameters of the models given",
                       "build the optimizer from the final parameters, initialize once, then wrap"};
      });
    }
  }
}

void check_optimizers(const Optimizers& optimizers, const ModelSet& models) {
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      check(&optimizers[i].get() != &optimizers[j].get(), kInitialize, [&] {
        return Problem{"an optimizer should only be passed to initialize once", str("optimizers ", j, " and ", i)};
      });
    }
    check_optimizer(optimizers[i].get(), i, models);
  }
}

void set_fp32_gradients(const ModelSet& models) {
  for (const auto& item : models.parameters()) {
    if (item.parameter.scalar_type() == at::kHalf || item.parameter.scalar_type() == at::kBFloat16) {
      item.parameter.set_grad_dtype(at::kFloat);
    }
  }
}

}  // namespace

Amp initialize(const Models& models, const Optimizers& optimizers, OptLevel level, const AmpOptions& options) {
  auto impl = std::make_unique<Amp::Impl>(models);
  const auto plan = make_plan(level, options, impl->models.device_type());
  if (plan.enabled) {
    impl->models.check_fresh();
    check_optimizers(optimizers, impl->models);
  }
  impl->begin(plan, optimizers);
  if (plan.enabled && options.fp32_gradients) {
    set_fp32_gradients(impl->models);
  }
  return Amp(std::move(impl));
}

Amp initialize(torch::nn::Module& model, torch::optim::Optimizer& optimizer, OptLevel level,
               const AmpOptions& options) {
  return initialize(Models{model}, Optimizers{optimizer}, level, options);
}

std::vector<at::Tensor> master_params(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

Amp::Amp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Amp::~Amp() = default;
Amp::Amp(Amp&&) noexcept = default;
Amp& Amp::operator=(Amp&&) noexcept = default;

OptLevel Amp::level() const {
  return impl_->plan.level;
}
const OptLevelProperties& Amp::properties() const {
  return impl_->plan.properties;
}
std::string Amp::describe() const {
  return amp::describe(impl_->plan);
}

at::Tensor Amp::cast_input_tensor(const at::Tensor& tensor) const {
  const auto dtype = impl_->plan.properties.cast_model_type;
  return impl_->plan.enabled && dtype && tensor.is_floating_point() ? tensor.to(*dtype) : tensor;
}

at::Tensor Amp::cast_output_tensor(const at::Tensor& tensor) const {
  if (!impl_->plan.enabled || !tensor.is_floating_point()) {
    return tensor;
  }
  const bool low = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  const auto dtype = impl_->plan.options.cast_model_outputs;
  return dtype ? tensor.to(*dtype) : low ? tensor.to(at::kFloat) : tensor;
}

AutocastState Amp::forward_state() const {
  auto state = AutocastState::current();
  if (impl_->plan.enabled && impl_->plan.properties.patch_torch_functions) {
    state.device(impl_->plan.device_type) = {true, impl_->plan.low_precision};
    state.cache = true;
  }
  return state;
}

Amp::Region::Region(const Amp& amp) : guard_(amp.forward_state()) {}
Amp::Region::~Region() {
  weights_changed();
}

at::Tensor Amp::scale(const at::Tensor& loss, int loss_id, const Optimizers& optimizers) {
  return impl_->scale(loss, loss_id, optimizers);
}

void Amp::unscale_(torch::optim::Optimizer& optimizer) {
  impl_->unscale(optimizer);
}

at::Tensor Amp::clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type) {
  return impl_->clip(optimizer, {.clip_norm = max_norm, .norm_type = norm_type});
}

StepOutcome Amp::step(torch::optim::Optimizer& optimizer, const optim::GradientTreatment& treatment) {
  return impl_->step(optimizer, treatment);
}

void Amp::zero_grad(bool set_to_none) {
  impl_->zero_grad(set_to_none);
}

double Amp::loss_scale(int loss_id) const {
  return impl_->scaler(loss_id, "amp.loss_scale").state().values().scale;
}

at::Tensor Amp::scale_tensor(int loss_id) const {
  return impl_->scaler(loss_id, "amp.scale_tensor").state().scale();
}

void Amp::check_skips() {
  for (const auto& scaler : impl_->scalers) {
    if (scaler->state().placed()) {
      scaler->check_skips("amp.step");
    }
  }
}

std::vector<NamedMaster> Amp::masters() const {
  return impl_->named_masters();
}

void Amp::refresh_masters() {
  impl_->derive_masters();
}

}  // namespace lockstep::amp
