// SPDX-License-Identifier: Apache-2.0
#include "lockstep/amp/grad_scaler.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <unordered_map>

#include "amp/gradients.h"
#include "amp/loss_scaler.h"
#include "core/check.h"
#include "lockstep/amp/autocast.h"
#include "lockstep/optim/scaled_step.h"
#include "optim/treated_step.h"

namespace lockstep::amp {
namespace {

using core::check;
using core::Problem;

constexpr const char* kScalerUnscale = "amp.GradScaler.unscale_";
constexpr const char* kScalerStep = "amp.GradScaler.step";
constexpr const char* kScalerClip = "amp.GradScaler.clip_grad_norm_";
constexpr const char* kUpdate = "amp.GradScaler.update";

enum class Progress : std::uint8_t { Ready, Unscaled, Stepped };

/// What one optimizer has gone through since the last update.
struct Record {
  Progress stage = Progress::Ready;
  at::Tensor found_inf;
  std::vector<at::Tensor> unscaled;        // the gradients that unscale_ wrote
  std::optional<GradientVersions> before;  // theirs, when a further loss was scaled after unscale_
};

void require_unmixed(const Record& record, torch::optim::Optimizer& optimizer) {
  check(!record.before || *record.before == versions_of(gradients_of(optimizer)), kScalerStep, [] {
    return Problem{.what = "gradients were written after unscale_ and a further scaled loss",
                   .got = "a mixture of true and scaled gradients",
                   .advice = "call unscale_ once, after the last backward() of the iteration"};
  });
}

}  // namespace

class GradScaler::Impl {
 public:
  explicit Impl(const GradScalerOptions& options) : loss(options) {}

  bool enabled() const { return loss.options().enabled; }

  void require_scaled(const char* where) const {
    check(loss.state().placed(), where, [] {
      return Problem{.what = "no loss has been scaled yet", .advice = "call scale(loss) and backward() first"};
    });
  }

  void require_gradients(const std::vector<at::Tensor>& gradients, const char* where) const {
    check(!gradients.empty() || loss.options().world, where, [] {
      return Problem{.what = "no inf checks were recorded for this optimizer",
                     .got = "no parameter with a gradient",
                     .advice = "call backward() on the scaled loss first"};
    });
  }

  /// What one look at the gradients found, on all ranks where that was asked for.
  void note(Record& record, const at::Tensor& found_inf) {
    record.found_inf = found_inf.to(loss.state().scale().device()).reshape(loss.state().scale().sizes());
    if (const auto& world = loss.options().world) {
      world->all_reduce(record.found_inf, ReduceOp::Max, {.name = "found_inf"}).wait();
    }
    loss.note(record.found_inf);
  }

  void look(Record& record, const std::vector<at::Tensor>& gradients, const at::Tensor& factor, const char* where) {
    require_gradients(gradients, where);
    note(record, unscale_and_check(gradients, factor));
  }

  void unscale(torch::optim::Optimizer& optimizer, Record& record, const char* where) {
    auto gradients = gradients_of(optimizer);
    if (!loss.options().allow_fp16_gradients) {
      refuse_fp16(gradients, where);
    }
    look(record, gradients, loss.state().inverse(), where);
    record.unscaled = std::move(gradients);
    record.stage = Progress::Unscaled;
  }

  at::Tensor step(torch::optim::Optimizer& optimizer, Record& record, const optim::GradientTreatment& treatment) {
    auto* fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer);
    if (fused != nullptr && record.stage == Progress::Ready) {
      return step_fused(*fused, optimizer, record, treatment);
    }
    auto* scaled = dynamic_cast<optim::ScaledOptimizer*>(&optimizer);
    if (scaled != nullptr && record.stage == Progress::Ready && !treatment.any()) {
      look(record, gradients_of(optimizer), at::ones_like(loss.state().scale()), kScalerStep);
      scaled->step_scaled(loss.state().scale(), record.found_inf);
      return {};
    }
    if (record.stage == Progress::Ready) {
      unscale(optimizer, record, kScalerStep);
    }
    auto norm = optim::treat(optimizer, treatment);
    if (scaled != nullptr) {
      scaled->step_scaled({}, record.found_inf);
    } else if (record.found_inf.item<float>() == 0) {
      optimizer.step();
    }
    return norm;
  }

  at::Tensor step_fused(optim::FusedOptimizer& fused, torch::optim::Optimizer& optimizer, Record& record,
                        const optim::GradientTreatment& treatment) {
    require_gradients(gradients_of(optimizer), kScalerStep);
    auto judged = optim::judge(optimizer, loss.state().scale(), treatment);
    note(record, judged.inputs.found_inf);
    judged.inputs.found_inf = record.found_inf;
    fused.step_fused(judged.inputs);
    return judged.norm;
  }

  void set_scale(const at::Tensor& scale) {
    loss.set_scale(scale);
    records.clear();
  }

  LossScaler loss;
  std::unordered_map<const torch::optim::Optimizer*, Record> records;
};

bool StepOutcome::skipped() const {
  return found_inf_.defined() && found_inf_.item<float>() != 0;
}

GradScaler::GradScaler(const GradScalerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale_one(const at::Tensor& output) {
  if (!impl_->enabled()) {
    return output;
  }
  for (auto& [optimizer, record] : impl_->records) {
    if (record.stage == Progress::Unscaled && !record.before) {
      record.before = versions_of(record.unscaled);
    }
  }
  return impl_->loss.scale(output);
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!impl_->enabled()) {
    return;
  }
  impl_->require_scaled(kScalerUnscale);
  auto& record = impl_->records[&optimizer];
  check(record.stage != Progress::Unscaled, kScalerUnscale,
        [] { return Problem{.what = "unscale_() has already been called on this optimizer since the last update()"}; });
  check(record.stage != Progress::Stepped, kScalerUnscale, [] {
    return Problem{.what = "unscale_() is being called after step()", .advice = "call update() between iterations"};
  });
  impl_->unscale(optimizer, record, kScalerUnscale);
}

at::Tensor GradScaler::clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type) {
  if (impl_->enabled()) {
    const auto stage = impl_->records[&optimizer].stage;
    check(stage != Progress::Stepped, kScalerClip,
          [] { return Problem{.what = "gradients are to be clipped before step(), which was called already"}; });
    if (stage == Progress::Ready) {
      unscale_(optimizer);
    }
  }
  return optim::treat(optimizer, {.clip_norm = max_norm, .norm_type = norm_type});
}

StepOutcome GradScaler::step(torch::optim::Optimizer& optimizer, const optim::GradientTreatment& treatment) {
  if (!impl_->enabled()) {
    auto norm = optim::treated_step(optimizer, treatment);
    weights_changed();
    return StepOutcome(at::Tensor(), std::move(norm));
  }
  impl_->require_scaled(kScalerStep);
  auto& record = impl_->records[&optimizer];
  check(record.stage != Progress::Stepped, kScalerStep,
        [] { return Problem{.what = "step() has already been called since the last update()"}; });
  require_unmixed(record, optimizer);
  auto norm = impl_->step(optimizer, record, treatment);
  record.stage = Progress::Stepped;
  weights_changed();
  return StepOutcome(record.found_inf, std::move(norm));
}

void GradScaler::update() {
  if (!impl_->enabled()) {
    return;
  }
  impl_->require_scaled(kUpdate);
  check(impl_->loss.noted(), kUpdate, [] {
    return Problem{.what = "no inf checks were recorded prior to update", .advice = "call step() or unscale_() first"};
  });
  impl_->records.clear();
  impl_->loss.update(kUpdate);
}

void GradScaler::update(double new_scale) {
  if (impl_->enabled()) {
    check_scale(new_scale, impl_->loss.options(), kUpdate);
    impl_->require_scaled(kUpdate);
    impl_->set_scale(at::full_like(impl_->loss.state().scale(), new_scale));
  }
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (impl_->enabled()) {
    impl_->require_scaled(kUpdate);
    check_scale_tensor(new_scale, impl_->loss.state().scale().device(), kUpdate);
    impl_->set_scale(new_scale);
  }
}

double GradScaler::get_scale() const {
  return impl_->enabled() ? impl_->loss.state().values().scale : 1.0;
}

at::Tensor GradScaler::scale_tensor() const {
  return impl_->loss.state().scale();
}

std::map<std::string, at::Tensor> GradScaler::state_tensors() const {
  return impl_->loss.state().tensors();
}

std::int64_t GradScaler::skips_in_a_row() const {
  return impl_->loss.state().values().skips;
}

void GradScaler::check_skips() {
  if (impl_->enabled() && impl_->loss.state().placed()) {
    impl_->loss.check_skips(kUpdate);
  }
}

bool GradScaler::is_enabled() const {
  return impl_->enabled();
}
double GradScaler::get_growth_factor() const {
  return impl_->loss.options().growth_factor;
}
double GradScaler::get_backoff_factor() const {
  return impl_->loss.options().backoff_factor;
}
std::int64_t GradScaler::get_growth_interval() const {
  return impl_->loss.options().growth_interval;
}

void GradScaler::set_growth_factor(double factor) {
  impl_->loss.change([&](auto& options) { options.growth_factor = factor; });
}

void GradScaler::set_backoff_factor(double factor) {
  impl_->loss.change([&](auto& options) { options.backoff_factor = factor; });
}

void GradScaler::set_growth_interval(std::int64_t interval) {
  impl_->loss.change([&](auto& options) { options.growth_interval = interval; });
}

std::map<std::string, double> GradScaler::state_dict() const {
  return impl_->enabled() ? impl_->loss.state_dict() : std::map<std::string, double>();
}

void GradScaler::load_state_dict(const std::map<std::string, double>& state) {
  if (impl_->enabled()) {
    impl_->loss.load_state_dict(state);
  }
}

}  // namespace lockstep::amp
