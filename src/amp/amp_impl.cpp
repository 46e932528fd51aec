// SPDX-License-Identifier: Apache-2.0
#include "amp/amp_impl.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_set>

#include "amp/gradients.h"
#include "core/check.h"
#include "lockstep/optim/fused.h"
#include "optim/treated_step.h"

namespace lockstep::amp {
namespace {

using core::check;
using core::Problem;
using core::str;

constexpr const char* kScale = "amp.scale";
constexpr const char* kUnscale = "amp.unscale_";
constexpr const char* kClip = "amp.clip_grad_norm_";
constexpr const char* kStep = "amp.step";

}  // namespace

void Amp::Impl::begin(const AmpPlan& made, const Optimizers& optimizers) {
  plan = made;
  const auto& properties = plan.properties;
  if (plan.enabled && properties.cast_model_type) {
    models.cast(*properties.cast_model_type, properties.keep_batchnorm_fp32.value_or(false), plan.options.keep_fp32);
  }
  for (int i = 0; i < std::max(1, plan.options.num_losses); ++i) {
    scalers.push_back(std::make_unique<LossScaler>(plan.scaler));
  }
  const bool persistent = plan.enabled && properties.master_weights.value_or(false);
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    bindings_.push_back(std::make_unique<Binding>(optimizers[i].get(), masters, str("optimizer", i), persistent));
  }
  if (plan.enabled) {
    bind_masters();
    models.settle();
  }
}

void Amp::Impl::bind_masters() {
  std::unordered_set<const void*> wanted;
  for (const auto& b : bindings_) {
    for (const auto& parameter : b->without_masters()) {
      wanted.insert(parameter.unsafeGetTensorImpl());
    }
  }
  std::vector<std::pair<std::string, at::Tensor>> in_model_order;
  for (const auto& item : models.parameters()) {
    if (wanted.count(item.parameter.unsafeGetTensorImpl()) != 0) {
      in_model_order.emplace_back(item.name, item.parameter);
    }
  }
  masters.build(in_model_order);
  for (const auto& b : bindings_) {
    b->prepare();
  }
}

LossScaler& Amp::Impl::scaler(int loss_id, const char* where) const {
  check(loss_id >= 0 && loss_id < static_cast<int>(scalers.size()), where, [&] {
    return Problem{"no such loss", str("loss_id ", loss_id), str("0 to ", scalers.size() - 1),
                   "say how many losses there are by AmpOptions::num_losses"};
  });
  return *scalers[static_cast<std::size_t>(loss_id)];
}

Binding& Amp::Impl::binding(const torch::optim::Optimizer& optimizer, const char* where) const {
  const auto found =
      std::find_if(bindings_.begin(), bindings_.end(), [&](const auto& b) { return &b->optimizer() == &optimizer; });
  check(found != bindings_.end(), where, [] {
    return Problem{.what = "this optimizer was not given to initialize", .advice = "pass all optimizers in one call"};
  });
  return **found;
}

std::vector<Binding*> Amp::Impl::chosen(const Optimizers& optimizers, const char* where) const {
  std::vector<Binding*> list;
  for (const auto& optimizer : optimizers) {
    list.push_back(&binding(optimizer.get(), where));
  }
  if (optimizers.empty()) {
    for (const auto& b : bindings_) {
      list.push_back(b.get());
    }
  }
  return list;
}

at::Tensor Amp::Impl::scale(const at::Tensor& loss, int loss_id, const Optimizers& optimizers) {
  auto& with = scaler(loss_id, kScale);
  const auto list = chosen(optimizers, kScale);
  if (!plan.enabled) {
    return loss;
  }
  for (const auto& b : bindings_) {
    b->prepare();
    if (!b->has_gradients()) {
      b->restart();
    }
  }
  for (const auto* b : list) {
    check(b->stage == Stage::Scaled, kScale, [] {
      return Problem{.what = "gradients have been unscaled, and neither stepped nor zeroed",
                     .got = "a further loss, whose scaled gradients would be added to true ones",
                     .advice = "call unscale_ after the last backward(), or name the optimizers this loss is for"};
    });
  }
  settle(kScale);
  const auto scaled = with.scale(loss);
  for (auto* b : list) {
    join(*b, loss_id);
  }
  return scaled;
}

void Amp::Impl::join(Binding& b, int loss_id) {
  if (b.loss_id != loss_id && !b.loss_ids.empty()) {
    const auto& from = scaler(b.loss_id, kScale).state();
    const auto& to = scaler(loss_id, kScale).state();
    b.multiply_gradients(to.scale() * from.inverse().to(to.scale().device()));
  }
  b.loss_id = loss_id;
  b.loss_ids.insert(loss_id);
}

void Amp::Impl::require_scaled(const Binding& b, const char* where) const {
  check(!b.loss_ids.empty(), where, [] {
    return Problem{.what = "no loss has been scaled for this optimizer since its last step",
                   .advice = "call amp.scale(loss).backward() first"};
  });
}

void Amp::Impl::require_gradients(const Binding& b, const char* where) const {
  check(b.has_gradients() || plan.options.world, where, [] {
    return Problem{.what = "no parameter of this optimizer has a gradient",
                   .advice = "call amp.scale(loss).backward() first"};
  });
}

void Amp::Impl::note(Binding& b, const at::Tensor& found_inf, const char* where) {
  const auto& scale = scaler(b.loss_id, where).state().scale();
  b.found_inf = found_inf.to(scale.device()).reshape(scale.sizes());
  if (const auto& world = plan.options.world) {
    world->all_reduce(b.found_inf, ReduceOp::Max, {.name = "found_inf"}).wait();
  }
  for (const int id : b.loss_ids) {
    scaler(id, where).note(b.found_inf);
  }
}

void Amp::Impl::look(Binding& b, const at::Tensor& factor, const char* where) {
  require_gradients(b, where);
  note(b, unscale_and_check(gradients_of(b.optimizer()), factor), where);
}

void Amp::Impl::unscale_gradients(Binding& b, const char* where) {
  require_gradients(b, where);
  b.make_gradients();
  b.stage = Stage::Unscaled;
  look(b, scaler(b.loss_id, where).state().inverse(), where);
}

void Amp::Impl::unscale(torch::optim::Optimizer& optimizer) {
  auto& b = binding(optimizer, kUnscale);
  if (!plan.enabled) {
    return;
  }
  b.prepare();
  require_scaled(b, kUnscale);
  check(b.stage == Stage::Scaled, kUnscale,
        [] { return Problem{.what = "unscale_() has already been called on this optimizer since its last step"}; });
  unscale_gradients(b, kUnscale);
}

at::Tensor Amp::Impl::clip(torch::optim::Optimizer& optimizer, const optim::GradientTreatment& treatment) {
  auto& b = binding(optimizer, kClip);
  if (plan.enabled) {
    b.prepare();
    require_scaled(b, kClip);
    if (b.stage == Stage::Scaled) {
      unscale_gradients(b, kClip);
    }
  }
  return optim::treat(optimizer, treatment);
}

at::Tensor Amp::Impl::judged_step(Binding& b, const optim::GradientTreatment& treatment) {
  optim::StepInputs inputs;
  at::Tensor norm;
  if (b.stage == Stage::Scaled && b.fused() != nullptr) {
    require_gradients(b, kStep);
    b.lend_gradients();
    auto judged = optim::judge(b.optimizer(), scaler(b.loss_id, kStep).state().scale(), treatment);
    note(b, judged.inputs.found_inf, kStep);
    inputs = judged.inputs;
    norm = judged.norm;
  } else if (b.stage == Stage::Scaled && b.scaled() != nullptr && !treatment.any()) {
    b.lend_gradients();
    inputs.grad_scale = scaler(b.loss_id, kStep).state().scale();
    look(b, at::ones_like(inputs.grad_scale), kStep);
  } else {
    if (b.stage == Stage::Scaled) {
      unscale_gradients(b, kStep);
    }
    norm = optim::treat(b.optimizer(), treatment);
  }
  inputs.found_inf = b.found_inf;
  b.take_step(inputs);
  return norm;
}

StepOutcome Amp::Impl::step(torch::optim::Optimizer& optimizer, const optim::GradientTreatment& treatment) {
  auto& b = binding(optimizer, kStep);
  at::Tensor found;
  at::Tensor norm;
  if (plan.enabled) {
    models.check_unchanged(kStep);
    b.prepare();
    require_scaled(b, kStep);
  }
  if (plan.looks) {
    norm = judged_step(b, treatment);
    found = b.found_inf;
  } else {
    b.stage == Stage::Scaled ? b.make_gradients() : void();
    norm = optim::treat(optimizer, treatment);
    b.take_step({});
  }
  b.finish();
  weights_changed();
  settle(kStep);
  return StepOutcome(found, std::move(norm));
}

void Amp::Impl::settle(const char* where) {
  for (std::size_t i = 0; i < scalers.size(); ++i) {
    const auto holds = [&](const auto& b) { return b->loss_ids.count(static_cast<int>(i)) != 0 && b->has_gradients(); };
    if (scalers[i]->noted() && std::none_of(bindings_.begin(), bindings_.end(), holds)) {
      scalers[i]->update(where);
    }
  }
}

void Amp::Impl::zero_grad(bool set_to_none) {
  for (const auto& b : bindings_) {
    b->zero_grad(set_to_none);
  }
  for (const auto& item : models.parameters()) {
    auto& gradient = item.parameter.mutable_grad();
    if (gradient.defined() && !set_to_none) {
      gradient.detach_().zero_();
    } else {
      gradient.reset();
    }
  }
}

std::vector<NamedMaster> Amp::Impl::named_masters() const {
  std::vector<NamedMaster> list;
  if (!plan.properties.master_weights.value_or(false)) {
    return list;
  }
  // Whoever looks at masters between a write to a parameter and the next step sees what that step will use.
  MasterList stale;
  for (const auto& m : masters.all()) {
    stale.push_back(m.get());
    list.push_back({m->name, m->master, m->parameter});
  }
  refresh(stale);
  return list;
}

void Amp::Impl::derive_masters() {
  MasterList list;
  for (const auto& m : masters.all()) {
    list.push_back(m.get());
  }
  derive(list);
}

}  // namespace lockstep::amp
