// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/amp/nested.h"
#include "lockstep/comm/world.h"
#include "lockstep/export.h"
#include "lockstep/optim/clip_grad.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::amp {

/// The first five fields are Python's, with Python's defaults.
struct GradScalerOptions {
  double init_scale = 65536.0;
  /// Above 1. The scale is multiplied by it after `growth_interval` clean updates in a row.
  double growth_factor = 2.0;
  /// Between 0 and 1. The scale is multiplied by it in an update that saw inf or NaN.
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  /// false: every call passes through, `step` is the optimizer's own.
  bool enabled = true;
  /// Updates with inf or NaN, in a row, that it takes to lower the scale; a clean update starts the count again.
  std::int64_t hysteresis = 1;
  /// The scale stays inside. The defaults keep the scale and its inverse normal fp32 numbers.
  double min_scale = 0x1p-126;
  double max_scale = 0x1p126;
  /// false: a static scale. Steps with inf or NaN are left out all the same.
  bool dynamic = true;
  /// `update` throws Error once this many updates in a row have seen inf or NaN; 0: never. On CUDA it is noticed up to
  /// 64 updates later, since nothing waits for the device.
  std::int64_t max_skips_in_a_row = 64;
  /// Unscale fp16 gradients in place, with what underflows lost, where the default is to refuse.
  bool allow_fp16_gradients = false;
  /// inf or NaN on one rank counts on all of this world. Only needed where gradients are not reduced, or are sharded:
  /// reduced ones carry inf and NaN to every rank. Then `unscale_` and `step` are collective calls.
  std::optional<World> world = std::nullopt;
};

/// What became of a step.
class LOCKSTEP_API StepOutcome {
 public:
  explicit StepOutcome(at::Tensor found_inf, at::Tensor grad_norm = {})
      : found_inf_(std::move(found_inf)), grad_norm_(std::move(grad_norm)) {}

  /// True where inf or NaN was found and the step was left out. Reads the device: for an optimizer that skips there
  /// (`optim::ScaledOptimizer`) this is the only wait of the step.
  bool skipped() const;

  /// One fp32 element, 0 or 1, on the scale's device; undefined where the scaler is disabled.
  const at::Tensor& found_inf() const { return found_inf_; }

  /// Norm of the true gradients before the step clipped them, one fp32 element; undefined where it did not clip.
  const at::Tensor& grad_norm() const { return grad_norm_; }

 private:
  at::Tensor found_inf_;
  at::Tensor grad_norm_;
};

/// Keeps fp16 gradients out of the range where they vanish: multiplies the loss, divides the gradients, leaves out
/// steps with inf or NaN and finds a fitting factor on the way. Calls, defaults, states and order are those of Python's
/// torch.amp.GradScaler:
///
///     scaler.scale(loss).backward();
///     scaler.step(optimizer);        // unscales first, unless unscale_(optimizer) was called
///     scaler.update();               // once an iteration, after all steps
///
/// Scale, growth tracker and inf flag live on the device of the first scaled tensor. `step` reads the flag on the host
/// for a stock torch::optim optimizer, and does not for an `optim::ScaledOptimizer`.
///
/// Calls in the wrong order throw InputError and change nothing. One thread at a time.
class LOCKSTEP_API GradScaler {
 public:
  /// Throws InputError for options out of range.
  explicit GradScaler(const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  /// `outputs` (a tensor, or tensors in containers, of any shape and device) times the scale. fp16 and bf16 tensors
  /// come back in fp32, others in their own dtype.
  template <class T>
  T scale(const T& outputs) {
    static_assert(holds_tensors<T>, "scale takes a tensor or a container of tensors");
    return map_tensors(outputs, [this](const at::Tensor& t) { return scale_one(t); });
  }

  /// Divides the gradients of the optimizer's parameters by the scale and looks for inf and NaN. Once an optimizer and
  /// iteration, after the last backward, for code that clips or inspects gradients. No host synchronisation.
  /// Throws InputError for fp16 gradients (see `allow_fp16_gradients`). fp16 and bf16 sparse gradients are coalesced
  /// first, since a sum may overflow where no summand does.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Clips the optimizer's gradients by their norm, all of them together, and returns the norm that the true ones had
  /// (one fp32 element). Calls unscale_ unless that was done. See optim::clip_grad_norm_; a GradientTreatment given to
  /// `step` does the same without writing gradients.
  at::Tensor clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type = 2);

  /// Unscales where that is still to do, then takes the optimizer's step, or leaves it out if a gradient holds inf or
  /// NaN. Throws InputError where no gradient exists, on a second call before `update`, and where scaled gradients were
  /// added to unscaled ones.
  /// A fused optimizer carries out `treatment` in its own passes.
  StepOutcome step(torch::optim::Optimizer& optimizer, const optim::GradientTreatment& treatment = {});

  /// Adapts the scale to what the steps since the last update found: any inf or NaN lowers it. Throws InputError where
  /// nothing was looked at since then.
  void update();
  /// Sets the scale instead. A finite number inside [min_scale, max_scale].
  void update(double new_scale);
  /// The same with one fp32 element on the scale's device, which is not read on the host.
  void update(const at::Tensor& new_scale);

  /// The current scale; 1 if disabled. Waits for the device.
  double get_scale() const;
  /// The live scale, one fp32 element, for a gradient penalty (`grad / scaler.scale_tensor()`). Undefined before the
  /// first `scale`, and if disabled.
  at::Tensor scale_tensor() const;
  /// The scale and the counters that steer it, live, by the names of `state_dict`. Empty before the first `scale`, and
  /// if disabled.
  std::map<std::string, at::Tensor> state_tensors() const;
  /// Updates in a row, so far, that saw inf or NaN. Waits for the device.
  std::int64_t skips_in_a_row() const;
  /// Throws Error as `update` does after too many skips in a row. For updates that replays of a CUDA graph make.
  void check_skips();

  bool is_enabled() const;
  double get_growth_factor() const;
  void set_growth_factor(double factor);
  double get_backoff_factor() const;
  void set_backoff_factor(double factor);
  std::int64_t get_growth_interval() const;
  void set_growth_interval(std::int64_t interval);

  /// Python's keys: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; and two of Lockstep's:
  /// _hysteresis_tracker, _skips_in_a_row. Empty if disabled. Call it between `update` and the next `scale`.
  std::map<std::string, double> state_dict() const;
  /// Accepts a Python scaler's five keys too. Does nothing if disabled. Throws InputError, and changes nothing, for an
  /// empty dict (from a disabled scaler), missing and unknown keys, and values out of range.
  void load_state_dict(const std::map<std::string, double>& state);

  class Impl;

 private:
  at::Tensor scale_one(const at::Tensor& output);

  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::amp
