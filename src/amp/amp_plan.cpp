// SPDX-License-Identifier: Apache-2.0
#include "amp/amp_plan.h"

#include <algorithm>

#include "amp/scaler_checks.h"
#include "core/check.h"

namespace lockstep::amp {
namespace {

using core::check;
using core::Problem;
using core::str;

constexpr const char* kPlan = "amp.initialize";

void check_low_precision(at::ScalarType dtype) {
  check(dtype == at::kHalf || dtype == at::kBFloat16, kPlan, [&] {
    return Problem{"low_precision is out of range", str(dtype), "Half or BFloat16"};
  });
}

void check_cast_type(const AmpOptions& options, OptLevel level) {
  if (!options.cast_model_type) {
    return;
  }
  const auto dtype = *options.cast_model_type;
  check(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, kPlan, [&] {
    return Problem{"cast_model_type is out of range", str(dtype), "Float, Half or BFloat16"};
  });
  check(level != OptLevel::O1 || dtype == at::kFloat, kPlan, [&] {
    return Problem{"O1 casts the inputs of single operations and keeps the model's weights in fp32",
                   str("cast_model_type = ", dtype), "no cast_model_type, or Float",
                   "use O2 or O3 to cast the model, low_precision to choose O1's dtype"};
  });
}

void check_against_level(const AmpOptions& options, OptLevel level) {
  const bool o1 = level == OptLevel::O1;
  check(o1 || !options.patch_torch_functions.value_or(false), kPlan, [&] {
    return Problem{"only O1 runs forward under autocast", str("patch_torch_functions = true at ", to_string(level)),
                   "no patch_torch_functions", "use O1, or open an amp::autocast region by hand"};
  });
  check(!o1 || !options.keep_batchnorm_fp32, kPlan, [] {
    return Problem{.what = "O1 keeps all weights in fp32, BatchNorm's too",
                   .got = "keep_batchnorm_fp32 at O1",
                   .expected = "no keep_batchnorm_fp32"};
  });
  check(!o1 || !options.master_weights, kPlan, [] {
    return Problem{.what = "O1 keeps all weights in fp32, so it has no masters",
                   .got = "master_weights at O1",
                   .expected = "no master_weights"};
  });
}

OptLevelProperties with_overrides(OptLevelProperties properties, const AmpOptions& options) {
  properties.cast_model_type = options.cast_model_type ? options.cast_model_type : properties.cast_model_type;
  properties.patch_torch_functions = options.patch_torch_functions.value_or(properties.patch_torch_functions);
  properties.keep_batchnorm_fp32 =
      options.keep_batchnorm_fp32 ? options.keep_batchnorm_fp32 : properties.keep_batchnorm_fp32;
  properties.master_weights = options.master_weights ? options.master_weights : properties.master_weights;
  properties.loss_scale = options.loss_scale.value_or(properties.loss_scale);
  return properties;
}

GradScalerOptions scaler_options(const LossScale& loss_scale, const AmpOptions& options) {
  GradScalerOptions scaler;
  scaler.dynamic = loss_scale.dynamic();
  scaler.min_scale = options.min_loss_scale.value_or(scaler.min_scale);
  scaler.max_scale = scaler.dynamic ? options.max_loss_scale : scaler.max_scale;
  scaler.init_scale = scaler.dynamic ? std::min(options.max_loss_scale, scaler.init_scale) : loss_scale.value();
  scaler.max_skips_in_a_row = options.max_skips_in_a_row;
  scaler.world = options.world;
  check_options(scaler);
  return scaler;
}

template <class T>
std::string shown(const std::optional<T>& value) {
  return value ? str(*value) : "none";
}

}  // namespace

AmpPlan make_plan(OptLevel level, const AmpOptions& options, c10::DeviceType device_type) {
  AmpPlan plan;
  plan.enabled = options.enabled;
  plan.level = level;
  plan.options = options;
  plan.device_type = device_type;
  plan.low_precision = options.low_precision.value_or(device_type == c10::kCUDA ? at::kHalf : at::kBFloat16);
  check_low_precision(plan.low_precision);
  plan.properties = with_overrides(properties_of(level, plan.low_precision), options);
  if (!options.enabled) {
    plan.looks = false;
    return plan;
  }
  check_cast_type(options, level);
  check_against_level(options, level);
  check(options.num_losses >= 1, kPlan, [&] {
    return Problem{"num_losses is out of range", str(options.num_losses), "at least 1"};
  });
  plan.scaler = scaler_options(plan.properties.loss_scale, options);
  plan.looks = level != OptLevel::O0 || plan.properties.cast_model_type != at::kFloat || plan.scaler.dynamic ||
               plan.scaler.init_scale != 1;
  return plan;
}

std::string describe(const AmpPlan& plan) {
  if (!plan.enabled) {
    return "mixed precision is disabled\n";
  }
  const auto& p = plan.properties;
  const auto scale = p.loss_scale.dynamic() ? std::string("dynamic") : str(p.loss_scale.value());
  return str("opt level ", to_string(plan.level), " (low precision: ", plan.low_precision, ")\n",
             "  cast_model_type        ", shown(p.cast_model_type), "\n  patch_torch_functions  ",
             p.patch_torch_functions, "\n  keep_batchnorm_fp32    ", shown(p.keep_batchnorm_fp32),
             "\n  master_weights         ", shown(p.master_weights), "\n  loss_scale             ", scale, "\n");
}

}  // namespace lockstep::amp
