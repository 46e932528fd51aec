// SPDX-License-Identifier: Apache-2.0
// The inside of an Amp: which scale every optimizer's gradients have, and when a scale may move.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "amp/amp_plan.h"
#include "amp/binding.h"
#include "amp/loss_scaler.h"
#include "amp/masters.h"
#include "amp/model_cast.h"
#include "lockstep/amp/opt_level.h"

namespace lockstep::amp {

class Amp::Impl {
 public:
  explicit Impl(const Models& of) : models(of) {}

  /// Casts, makes masters, binds optimizers. Everything has been checked.
  void begin(const AmpPlan& plan, const Optimizers& optimizers);

  at::Tensor scale(const at::Tensor& loss, int loss_id, const Optimizers& optimizers);
  void unscale(torch::optim::Optimizer& optimizer);
  at::Tensor clip(torch::optim::Optimizer& optimizer, const optim::GradientTreatment& treatment);
  StepOutcome step(torch::optim::Optimizer& optimizer, const optim::GradientTreatment& treatment);
  void zero_grad(bool set_to_none);

  LossScaler& scaler(int loss_id, const char* where) const;
  std::vector<NamedMaster> named_masters() const;
  void derive_masters();

  ModelSet models;
  AmpPlan plan;
  Masters masters;
  std::vector<std::unique_ptr<LossScaler>> scalers;

 private:
  void bind_masters();
  Binding& binding(const torch::optim::Optimizer& optimizer, const char* where) const;
  std::vector<Binding*> chosen(const Optimizers& optimizers, const char* where) const;
  void require_scaled(const Binding& binding, const char* where) const;

  /// Brings gradients of another loss to the scale of `loss_id`, and notes that this one joins them.
  void join(Binding& binding, int loss_id);
  void require_gradients(const Binding& binding, const char* where) const;
  /// What one look at gradients found, on all ranks where that was asked for, counts for every loss in them.
  void note(Binding& binding, const at::Tensor& found_inf, const char* where);
  /// One look at gradients times `factor`.
  void look(Binding& binding, const at::Tensor& factor, const char* where);
  /// The step with a look, and the norm where `treatment` clips.
  at::Tensor judged_step(Binding& binding, const optim::GradientTreatment& treatment);
  void unscale_gradients(Binding& binding, const char* where);
  /// Moves each scale that was judged and that no gradients have any more.
  void settle(const char* where);

  std::vector<std::unique_ptr<Binding>> bindings_;
};

}  // namespace lockstep::amp
