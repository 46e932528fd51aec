// SPDX-License-Identifier: Apache-2.0
// What an optimizer offers beyond torch::optim::Optimizer so that a mixed precision step needs no look at the host.
// An optimizer class derives from torch::optim::Optimizer and from one of these.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/export.h"

namespace lockstep::optim {

/// An optimizer that unscales its gradients, and leaves a step out, on the device.
class LOCKSTEP_API ScaledOptimizer {
 public:
  virtual ~ScaledOptimizer() = default;

  /// One step with the gradients in `param.grad()`, which are `grad_scale` times too large. Whether `.grad` holds the
  /// scaled or the true gradient afterwards is open: the caller drops or overwrites it.
  ///
  /// `grad_scale`: one fp32 element on the parameters' device; undefined: the gradients are true already.
  /// `found_inf`: one fp32 element there; undefined, or 0: take the step; anything else: parameters, moments and step
  /// counts stay as they are, bit for bit. The values are read on the device, in the order of the current stream: no
  /// host synchronisation. Gradients may be of lower precision than their parameter (fp16 or bf16 for fp32).
  ///
  /// The caller has looked for inf and NaN already (see GradScaler); this call need not.
  virtual void step_scaled(const at::Tensor& grad_scale, const at::Tensor& found_inf) = 0;
};

/// A fp32 master weight and the fp16 or bf16 parameter of the model that is its rounded copy. Same sizes and strides.
struct MasterPair {
  at::Tensor master;
  at::Tensor parameter;
};

/// A ScaledOptimizer that keeps low precision copies of its parameters up to date in the same pass.
///
/// For each pair, `step_scaled` and `step` read the master where `round(master)` has the bits of `parameter`, and take
/// `parameter`'s value, as fp32, where it has not (then somebody else wrote it: a broadcast, a load, the user). After
/// the update they write the rounded master to `parameter` and bump its version counter. A step that is left out
/// writes neither.
class LOCKSTEP_API MasterOptimizer : public ScaledOptimizer {
 public:
  /// Replaces all pairs. Each `master` is, or is about to become, a parameter of the optimizer's groups; parameters
  /// without a pair are updated as usual. Pairs are held until the next call.
  virtual void set_master_pairs(std::vector<MasterPair> pairs) = 0;
};

}  // namespace lockstep::optim
