// SPDX-License-Identifier: Apache-2.0
// The part of a step that depends on the kind of mixed precision: scaling a loss, and going from gradients to weights.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/step/train_step.h"

namespace lockstep::step {

class Update {
 public:
  explicit Update(const TrainStepParts& parts) : parts_(parts) {}

  at::Tensor scale(const at::Tensor& loss) const;
  /// From reduced gradients to new weights; gradients are gone afterwards.
  amp::StepOutcome take(const optim::GradientTreatment& treatment) const;
  void drop_gradients() const;
  /// What a step checks on the host and a replay of it cannot.
  void check_skips() const;

 private:
  TrainStepParts parts_;
};

}  // namespace lockstep::step
