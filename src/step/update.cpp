// SPDX-License-Identifier: Apache-2.0
#include "step/update.h"

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/opt_level.h"
#include "optim/treated_step.h"

namespace lockstep::step {

at::Tensor Update::scale(const at::Tensor& loss) const {
  if (parts_.amp != nullptr) {
    return parts_.amp->scale(loss, 0, {parts_.optimizer});
  }
  return parts_.scaler != nullptr ? parts_.scaler->scale(loss) : loss;
}

amp::StepOutcome Update::take(const optim::GradientTreatment& treatment) const {
  auto& optimizer = parts_.optimizer;
  if (parts_.amp != nullptr) {
    return parts_.amp->step(optimizer, treatment);
  }
  amp::StepOutcome outcome{at::Tensor()};
  if (parts_.scaler != nullptr) {
    outcome = parts_.scaler->step(optimizer, treatment);
    parts_.scaler->update();
  } else {
    outcome = amp::StepOutcome({}, optim::treated_step(optimizer, treatment));
    amp::weights_changed();
  }
  optimizer.zero_grad();
  return outcome;
}

void Update::check_skips() const {
  if (parts_.amp != nullptr) {
    parts_.amp->check_skips();
  } else if (parts_.scaler != nullptr) {
    parts_.scaler->check_skips();
  }
}

void Update::drop_gradients() const {
  if (parts_.amp != nullptr) {
    parts_.amp->zero_grad();
  }
  parts_.optimizer.zero_grad();
}

}  // namespace lockstep::step
