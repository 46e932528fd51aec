// SPDX-License-Identifier: Apache-2.0
// One loss scale and what was found in the gradients since its last update: what GradScaler and the opt levels share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "amp/scale_state.h"
#include "amp/scaler_checks.h"
#include "amp/skip_watch.h"
#include "lockstep/amp/grad_scaler.h"

namespace lockstep::amp {

class LossScaler {
 public:
  /// Throws InputError for options out of range.
  explicit LossScaler(const GradScalerOptions& options);

  const GradScalerOptions& options() const { return options_; }
  const ScaleState& state() const { return state_; }

  /// Changes options by `fn(options)`; keeps the old ones if the new are out of range.
  template <class Fn>
  void change(const Fn& fn) {
    auto changed = options_;
    fn(changed);
    check_options(changed);
    options_ = changed;
  }

  /// `output` times the scale; fp16 and bf16 come back in fp32. The first call settles the scale's device.
  at::Tensor scale(const at::Tensor& output);

  /// Counts one look at gradients (one fp32 element on the scale's device) towards the next update.
  void note(const at::Tensor& found_inf);
  bool noted() const { return found_inf_.defined(); }

  /// Moves the scale by what was noted, then `check_skips`.
  void update(const char* where);
  /// Throws Error, naming `where`, after too many skips in a row. `update` calls it, but not under capture.
  void check_skips(const char* where);
  /// Sets the scale and forgets what was noted.
  void set_scale(const at::Tensor& scale);

  std::map<std::string, double> state_dict() const;
  void load_state_dict(const std::map<std::string, double>& state);

 private:
  [[noreturn]] void fail_for_skips(const char* where);

  GradScalerOptions options_;
  ScaleState state_;
  SkipWatch watch_;
  at::Tensor found_inf_;
};

}  // namespace lockstep::amp
