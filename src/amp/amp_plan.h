// SPDX-License-Identifier: Apache-2.0
// What a level and its overrides come to, and everything that `initialize` refuses.
#pragma once

#include <c10/core/DeviceType.h>

#include "lockstep/amp/opt_level.h"

namespace lockstep::amp {

struct AmpPlan {
  bool enabled = true;
  OptLevel level = OptLevel::O0;
  OptLevelProperties properties;
  c10::DeviceType device_type = c10::kCPU;
  at::ScalarType low_precision = at::kBFloat16;
  GradScalerOptions scaler;
  AmpOptions options;
  /// Steps look for inf and NaN. Not at plain fp32 without a loss scale.
  bool looks = true;
};

/// Throws InputError for overrides that are out of range or do not suit the level.
AmpPlan make_plan(OptLevel level, const AmpOptions& options, c10::DeviceType device_type);

/// The plan in a few lines.
std::string describe(const AmpPlan& plan);

}  // namespace lockstep::amp
