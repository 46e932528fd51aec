// SPDX-License-Identifier: Apache-2.0
// Gradient clipping without a look at the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "lockstep/export.h"

namespace lockstep::optim {

struct ClipOptions {
  double norm_type = 2;  // 1, 2 or infinity
  /// Read the norm on the host (this waits) and throw Error if it is NaN or infinite. Gradients are then as they were.
  bool error_if_nonfinite = false;
  /// The gradients are this many times too large: one fp32 element; undefined: they are true. The norm is then that of
  /// the true gradients, and `max_norm` is meant for them.
  at::Tensor grad_scale = {};
  /// For gradients that are split among ranks: is given the sum of |g|^norm_type over what is here (their maximum for
  /// the infinity norm), one fp64 element on the device, and reduces it over the shards in place.
  std::function<void(at::Tensor&)> reduce = {};
};

/// Each tensor is one fp32 element on the gradients' device (the first one's, if they lie on several).
struct ClipResult {
  at::Tensor norm;       // of all true gradients together
  at::Tensor factor;     // min(1, max_norm / (norm + 1e-6)), and 1 where the norm is NaN or infinite
  at::Tensor found_inf;  // 1 where the norm is NaN or infinite, else 0
};

/// Reads the gradients once and says what clipping would do; a fused optimizer takes `factor` and `found_inf` into its
/// own pass (StepInputs). Parameters without gradient do not count, a tensor listed twice counts once, and without any
/// gradient the norm is 0. Sums are exact to fp32 however large the gradients are: squares do not overflow.
/// fp16, bf16, fp32 and fp64, mixed, on CPU and CUDA. Throws InputError for other gradients or another norm.
LOCKSTEP_API ClipResult clip_factor(const std::vector<at::Tensor>& parameters, double max_norm,
                                    const ClipOptions& options = {});

/// Multiplies the gradients by that factor, and returns the norm they had. Where the norm is NaN or infinite they are
/// left as they are: check the returned norm, or set `error_if_nonfinite`.
LOCKSTEP_API at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                        const ClipOptions& options = {});

/// Clamps every element of every gradient to [-clip_value, clip_value]. NaN stays NaN.
LOCKSTEP_API void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

/// What a step does to the true gradients before the update. A fused optimizer does it in its own passes.
struct GradientTreatment {
  double clip_norm = 0;        // largest norm; 0: gradients are not clipped
  double norm_type = 2;        // see ClipOptions
  at::Tensor multiplier = {};  // multiplies the gradients before they are clipped: one fp32 element; undefined: 1

  bool any() const { return clip_norm > 0 || multiplier.defined(); }
};

}  // namespace lockstep::optim
