// SPDX-License-Identifier: Apache-2.0
// A GradientTreatment carried out: inside a fused optimizer's passes, or on the gradients themselves.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/fused.h"

namespace lockstep::optim {

struct FusedStep {
  StepInputs inputs;
  at::Tensor norm;  // of the treated gradients before they are clipped; one fp32 element
};

/// Reads the gradients once: what `step_fused` needs to unscale, treat and judge them. `grad_scale` as in StepInputs.
FusedStep judge(const torch::optim::Optimizer& optimizer, const at::Tensor& grad_scale,
                const GradientTreatment& treatment);

/// Treats true gradients in place, and returns the norm they had before they were clipped (undefined if they are not).
at::Tensor treat(const torch::optim::Optimizer& optimizer, const GradientTreatment& treatment);

/// A step with true gradients that nobody looks at for inf and NaN. Returns the norm as `treat` does.
at::Tensor treated_step(torch::optim::Optimizer& optimizer, const GradientTreatment& treatment);

}  // namespace lockstep::optim
