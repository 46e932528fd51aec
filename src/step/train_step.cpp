// SPDX-License-Identifier: Apache-2.0
#include "lockstep/step/train_step.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include "core/check.h"
#include "ddp/replica.h"
#include "lockstep/optim/lr_schedule.h"
#include "step/train_step_impl.h"

namespace lockstep {
namespace {

using core::check;
using core::Problem;
using core::str;

constexpr const char* kConstruct = "step.construct";
constexpr const char* kRun = "step.run";

c10::Device device_of(const TrainStepParts& parts) {
  for (const auto& group : parts.optimizer.param_groups()) {
    if (!group.params().empty()) {
      return group.params().front().device();
    }
  }
  core::fail(kConstruct, {.what = "the optimizer has no parameters"});
}

TrainStepOptions checked(const TrainStepOptions& options) {
  check(options.accumulate >= 1, kConstruct, [&] {
    return Problem{"the number of micro-batches a window is not positive", str(options.accumulate), "1 or more"};
  });
  check(options.clip_norm >= 0 && options.typical_count > 0, kConstruct, [&] {
    return Problem{"option out of range",
                   str("clip_norm ", options.clip_norm, ", typical_count ", options.typical_count),
                   "clip_norm >= 0 and typical_count > 0"};
  });
  check(options.warm_up >= 1 && options.max_shapes >= 1, kConstruct, [&] {
    return Problem{"option out of range", str("warm_up ", options.warm_up, ", max_shapes ", options.max_shapes),
                   "1 or more", "lazy state must exist before a step is recorded"};
  });
  return options;
}

}  // namespace

TrainStep::Impl::Impl(const TrainStepParts& parts, Loss loss, const TrainStepOptions& options)
    : parts_(parts),
      loss_(std::move(loss)),
      options_(checked(options)),
      device_(device_of(parts)),
      update_(parts),
      window_(options, parts.ddp != nullptr ? parts.ddp->world() : World(), device_) {
  check(loss_ != nullptr, kConstruct, [] { return Problem{.what = "there is no loss function"}; });
  check(parts.amp == nullptr || parts.scaler == nullptr, kConstruct, [] {
    return Problem{.what = "both amp and scaler were given", .advice = "amp::initialize brings its own scaler"};
  });
  if (options_.capture) {
    const auto found = obstacle();
    if (found.empty()) {
      captured_ =
          std::make_unique<step::Captured>(step::make_recorder(device_), options_.accumulate, options_.max_shapes);
    } else {
      stay_eager(found);
    }
  }
}

void TrainStep::Impl::require_sound(const char* where) const {
  check(!spoilt_, where, [] {
    return Problem{.what = "a backward pass of this window has thrown, its gradients cannot be trusted",
                   .advice = "call abandon(), or end the program"};
  });
}

at::Tensor TrainStep::Impl::evaluate(const Inputs& inputs) const {
  auto loss = loss_(inputs);
  const bool usable = loss.defined() && loss.numel() == 1 && loss.is_floating_point() && loss.requires_grad();
  check(usable, kRun, [&] {
    return Problem{"the loss function's result cannot be differentiated",
                   loss.defined() ? str(c10::toString(loss.scalar_type()), loss.sizes(),
                                        loss.requires_grad() ? "" : ", without history")
                                  : "an undefined tensor",
                   "one floating element that requires grad"};
  });
  return loss;
}

at::Tensor TrainStep::Impl::micro_batch(const Inputs& inputs, bool ends) {
  std::optional<DataParallelBase::NoSync> quiet;
  if (parts_.ddp != nullptr && !ends) {
    quiet.emplace(parts_.ddp->no_sync());
  }
  const auto loss = evaluate(inputs);
  // Backward starts from the scaled weight: multiplying the loss would cost a detour forward and one back.
  const auto weight = window_.weight(loss);
  auto start = update_.scale(weight).to(loss.device(), loss.scalar_type()).reshape(loss.sizes());
  if (start.is_alias_of(weight)) {
    start = start.clone();  // a parameter that is only viewed on its way to the loss keeps it as `.grad`, to be written
  }
  const auto unwatched = pause_watching();
  spoilt_ = true;
  loss.backward(start);
  spoilt_ = false;
  return loss.detach();
}

/// Replicas are compared where a replay can be too: after the update. So ranks may differ in whether they replay.
std::unique_ptr<ddp::WatchPause> TrainStep::Impl::pause_watching() const {
  return parts_.ddp == nullptr ? nullptr : std::make_unique<ddp::WatchPause>(*parts_.ddp->replica_);
}

amp::StepOutcome TrainStep::Impl::take_step() {
  const auto outcome = update_.take(
      {.clip_norm = options_.clip_norm, .norm_type = options_.clip_norm_type, .multiplier = window_.multiplier()});
  window_.restart();
  return outcome;
}

TrainStepResult TrainStep::Impl::run(const Inputs& inputs, const MicroBatch& micro_batch) {
  require_sound(kRun);
  check(micro_batch.count >= 0, kRun, [&] {
    return Problem{"the micro-batch's count is negative or NaN", str(micro_batch.count), "0 or more"};
  });
  window_.set_count(micro_batch.count);
  const bool ends = micro_batch.last || window_.ends_with_next();
  const bool whole = window_.ends_with_next() == ends;
  if (captured_ != nullptr && whole && prepare_replay(inputs)) {
    return replay(inputs, ends);
  }
  if (replaying_) {
    captured_->show_gradients(replayed_, trained());
    replaying_ = false;
  }
  std::optional<TrainStepResult> result;
  const auto body = [&] { result.emplace(run_eagerly(inputs, ends)); };
  captured_ != nullptr ? captured_->recorder().run(body) : body();
  return *std::move(result);
}

TrainStepResult TrainStep::Impl::run_eagerly(const Inputs& inputs, bool ends) {
  auto loss = micro_batch(inputs, ends);
  window_.advance();
  if (!ends) {
    return {std::move(loss), std::nullopt};
  }
  settle();  // not earlier: the device has this window's work by now, while the host waits for the last step's outcome
  auto outcome = take_step();
  end_window(outcome);
  return {std::move(loss), std::move(outcome)};
}

void TrainStep::Impl::end_window(const amp::StepOutcome& outcome) {
  ++steps_;
  replaying_ = false;
  if (parts_.schedule != nullptr) {
    skipped_.send(outcome.found_inf());
    if (device_.is_cpu()) {
      settle();
    }
  }
  if (parts_.ddp != nullptr) {
    parts_.ddp->replica_->watch_step();
  }
}

void TrainStep::Impl::settle() {
  if (skipped_.sent() && !skipped_.take()) {
    parts_.schedule->step();
  }
}

TrainStepResult TrainStep::Impl::finish() {
  constexpr const char* kWhere = "step.finish";
  require_sound(kWhere);
  if (window_.length() == 0) {
    return {at::Tensor(), std::nullopt};
  }
  settle();
  if (replaying_) {
    captured_->show_gradients(replayed_, trained());
    replaying_ = false;
    update_.scale(at::zeros({}, at::TensorOptions(device_)));  // replays leave no trace on the host: say it again
  }
  if (parts_.ddp != nullptr) {
    const auto unwatched = pause_watching();
    spoilt_ = true;
    parts_.ddp->synchronize_gradients();
    spoilt_ = false;
  }
  auto outcome = take_step();
  end_window(outcome);
  return {at::Tensor(), std::move(outcome)};
}

void TrainStep::Impl::abandon() {
  update_.drop_gradients();
  window_.restart();
  spoilt_ = false;
  replaying_ = false;
}

TrainStep::TrainStep(const TrainStepParts& parts, Loss loss, const TrainStepOptions& options)
    : impl_(std::make_unique<Impl>(parts, std::move(loss), options)) {}
TrainStep::~TrainStep() = default;
TrainStep::TrainStep(TrainStep&&) noexcept = default;
TrainStep& TrainStep::operator=(TrainStep&&) noexcept = default;

TrainStepResult TrainStep::operator()(const Inputs& inputs, const MicroBatch& micro_batch) {
  return impl_->run(inputs, micro_batch);
}
TrainStepResult TrainStep::finish() {
  return impl_->finish();
}
void TrainStep::abandon() {
  impl_->abandon();
}
void TrainStep::settle() {
  impl_->settle();
}
std::int64_t TrainStep::pending() const {
  return impl_->pending();
}
std::int64_t TrainStep::steps() const {
  return impl_->steps();
}
std::string TrainStep::describe() const {
  return impl_->describe();
}

}  // namespace lockstep
