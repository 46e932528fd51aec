// SPDX-License-Identifier: Apache-2.0
// When a TrainStep records its step, when it replays it, and when it leaves that be.
#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <unordered_map>

#include "core/check.h"
#include "lockstep/amp/autocast.h"
#include "lockstep/amp/opt_level.h"
#include "lockstep/optim/fused.h"
#include "step/train_step_impl.h"

namespace lockstep {
namespace {

using core::str;
using step::Place;

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::string TrainStep::Impl::obstacle() const {
  if (!device_.is_cuda()) {
    return str("the parameters are on ", device_, ", only CUDA steps can be captured");
  }
  const auto* fused = dynamic_cast<const optim::FusedOptimizer*>(&parts_.optimizer);
  if (fused == nullptr || !fused->capturable()) {
    return "the optimizer keeps its step on the host; use lockstep::optim's with FusedOptions::capturable";
  }
  if (parts_.ddp != nullptr && parts_.ddp->world().size() > 1 && parts_.ddp->world().backend() != BackendKind::Nccl) {
    return "the world's backend reduces on the host; use NCCL";
  }
  return {};
}

void TrainStep::Impl::stay_eager(const std::string& reason) {
  core::check(!options_.require_capture, "step.capture", [&] {
    return core::Problem{"the step cannot be captured: " + reason, "", "", "mend that, or drop require_capture"};
  });
  captured_.reset();
  reason_ = reason;
}

std::string TrainStep::Impl::describe() const {
  if (captured_ == nullptr) {
    return options_.capture ? "eager: " + reason_ : "eager";
  }
  const auto shapes = captured_->shapes();
  return shapes == 0 ? "warming up" : str("captured, ", shapes, shapes == 1 ? " input shape" : " input shapes");
}

std::vector<at::Tensor> TrainStep::Impl::trained() const {
  std::unordered_map<const void*, at::Tensor> of_master;
  if (parts_.amp != nullptr) {
    for (const auto& named : parts_.amp->masters()) {
      of_master.emplace(named.master.unsafeGetTensorImpl(), named.parameter);
    }
  }
  std::vector<at::Tensor> list;
  for (const auto& group : parts_.optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto found = of_master.find(parameter.unsafeGetTensorImpl());
      list.push_back(found == of_master.end() ? parameter : found->second);
    }
  }
  return list;
}

step::Outputs TrainStep::Impl::recorded(const Inputs& inputs, Place place) {
  const bool ends = place == Place::Last;
  window_.set_length(ends ? options_.accumulate : 0);
  auto loss = micro_batch(inputs, ends);
  if (!ends) {
    return {std::move(loss), {}, {}};
  }
  const auto outcome = take_step();
  return {std::move(loss), outcome.found_inf(), outcome.grad_norm()};
}

bool TrainStep::Impl::try_record(const Inputs& inputs) {
  try {
    captured_->record(
        inputs, [this](const Inputs& in, Place place) { return recorded(in, place); }, trained());
    window_.set_length(0);
    return true;
  } catch (const std::exception& error) {
    abandon();
    stay_eager("recording failed: " + first_line(error.what()));
    return false;
  }
}

bool TrainStep::Impl::prepare_replay(const Inputs& inputs) {
  if (window_.length() > 0) {
    return replaying_ && captured_->has(inputs);
  }
  if (captured_->has(inputs)) {
    return true;
  }
  return steps_ >= options_.warm_up && !captured_->full() && try_record(inputs);
}

void TrainStep::Impl::upload_learning_rates() {
  std::vector<double> now;
  for (const auto& group : parts_.optimizer.param_groups()) {
    now.push_back(group.options().get_lr());
  }
  if (now != rates_) {
    dynamic_cast<optim::FusedOptimizer&>(parts_.optimizer).upload_learning_rates();
    rates_ = std::move(now);
  }
}

TrainStepResult TrainStep::Impl::replay(const Inputs& inputs, bool ends) {
  if (ends) {
    settle();
    upload_learning_rates();
  }
  const auto place = ends ? Place::Last : window_.length() == 0 ? Place::First : Place::Inner;
  auto outputs = captured_->replay(inputs, place);
  replaying_ = true;
  replayed_ = inputs;
  window_.advance();
  if (!ends) {
    return {std::move(outputs.loss), std::nullopt};
  }
  amp::weights_changed();
  window_.set_length(0);
  amp::StepOutcome outcome(std::move(outputs.found_inf), std::move(outputs.norm));
  end_window(outcome);
  update_.check_skips();
  return {std::move(outputs.loss), std::move(outcome)};
}

}  // namespace lockstep
