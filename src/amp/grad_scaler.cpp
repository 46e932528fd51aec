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

namespace lockstep::amp {
namespace {

using core::check;
using core::Problem;

constexpr const char* kUnscale = "amp.GradScaler.unscale_";
constexpr const char* kStep = "amp.GradScaler.step";
constexpr const char* kUpdate = "amp.GradScaler.update";

enum class Stage : std::uint8_t { Ready, Unscaled, Stepped };

/// What one optimizer has gone through since the last update.
struct Record {
  Stage stage = Stage::Ready;
  at::Tensor found_inf;
  std::vector<at::Tensor> unscaled;        // the gradients that unscale_ wrote
  std::optional<GradientVersions> before;  // theirs, when a further loss was scaled after unscale_
};

void require_unmixed(const Record& record, torch::optim::Optimizer& optimizer) {
  check(!record.before || *record.before == versions_of(gradients_of(optimizer)), kStep, [] {
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

  /// One look at the gradients, times `factor`, on all ranks where that was asked for.
  void look(Record& record, const std::vector<at::Tensor>& gradients, const at::Tensor& factor, const char* where) {
    const auto& world = loss.options().world;
    check(!gradients.empty() || world, where, [] {
      return Problem{.what = "no inf checks were recorded for this optimizer",
                     .got = "no parameter with a gradient",
                     .advice = "call backward() on the scaled loss first"};
    });
    record.found_inf = unscale_and_check(gradients, factor);
    if (world) {
      world->all_reduce(record.found_inf, ReduceOp::Max, {.name = "found_inf"}).wait();
    }
    loss.note(record.found_inf);
  }

  void unscale(torch::optim::Optimizer& optimizer, Record& record, const char* where) {
    auto gradients = gradients_of(optimizer);
    if (!loss.options().allow_fp16_gradients) {
      refuse_fp16(gradients, where);
    }
    look(record, gradients, loss.state().inverse(), where);
    record.unscaled = std::move(gradients);
    record.stage = Stage::Unscaled;
  }

  void step_on_device(optim::ScaledOptimizer& scaled, torch::optim::Optimizer& optimizer, Record& record) {
    const bool still_scaled = record.stage == Stage::Ready;
    if (still_scaled) {
      look(record, gradients_of(optimizer), at::ones_like(loss.state().scale()), kStep);
    }
    scaled.step_scaled(still_scaled ? loss.state().scale() : at::Tensor(), record.found_inf);
  }

  void step_on_host(torch::optim::Optimizer& optimizer, Record& record) {
    if (record.stage == Stage::Ready) {
      unscale(optimizer, record, kStep);
    }
    if (record.found_inf.item<float>() == 0) {
      optimizer.step();
    }
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
    if (record.stage == Stage::Unscaled && !record.before) {
      record.before = versions_of(record.unscaled);
    }
  }
  return impl_->loss.scale(output);
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!impl_->enabled()) {
    return;
  }
  impl_->require_scaled(kUnscale);
  auto& record = impl_->records[&optimizer];
  check(record.stage != Stage::Unscaled, kUnscale,
        [] { return Problem{.what = "unscale_() has already been called on this optimizer since the last update()"}; });
  check(record.stage != Stage::Stepped, kUnscale, [] {
    return Problem{.what = "unscale_() is being called after step()", .advice = "call update() between iterations"};
  });
  impl_->unscale(optimizer, record, kUnscale);
}

StepOutcome GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!impl_->enabled()) {
    optimizer.step();
    weights_changed();
    return StepOutcome(at::Tensor());
  }
  impl_->require_scaled(kStep);
  auto& record = impl_->records[&optimizer];
  check(record.stage != Stage::Stepped, kStep,
        [] { return Problem{.what = "step() has already been called since the last update()"}; });
  require_unmixed(record, optimizer);
  if (auto* scaled = dynamic_cast<optim::ScaledOptimizer*>(&optimizer)) {
    impl_->step_on_device(*scaled, optimizer, record);
  } else {
    impl_->step_on_host(optimizer, record);
  }
  record.stage = Stage::Stepped;
  weights_changed();
  return StepOutcome(record.found_inf);
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

std::int64_t GradScaler::skips_in_a_row() const {
  return impl_->loss.state().values().skips;
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
