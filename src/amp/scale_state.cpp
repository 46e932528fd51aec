// SPDX-License-Identifier: Apache-2.0
#include "amp/scale_state.h"

#include <ATen/ATen.h>

namespace lockstep::amp {

void ScaleState::place(c10::Device device) {
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  scale_ = at::full({}, values_.scale, fp32);
  growth_tracker_ = at::full({}, values_.growth_tracker, fp32.dtype(at::kInt));
  hysteresis_tracker_ = at::full({}, values_.hysteresis_tracker, fp32);
  skips_ = at::full({}, values_.skips, fp32);
}

at::Tensor ScaleState::inverse() const {
  return scale_.to(at::kDouble).reciprocal().to(at::kFloat);
}

void ScaleState::advance(const at::Tensor& found_inf, const ScaleLaw& law) {
  const at::NoGradGuard no_grad;
  if (law.dynamic) {
    const auto before = law.hysteresis > 1 ? scale_.clone() : at::Tensor();
    at::_amp_update_scale_(scale_, growth_tracker_, found_inf, law.growth_factor, law.backoff_factor,
                           law.growth_interval);
    if (before.defined()) {
      spend_hysteresis(found_inf, before, law);
    }
    scale_.clamp_(law.min_scale, law.max_scale);
  }
  skips_.add_(found_inf).mul_(found_inf);
}

void ScaleState::spend_hysteresis(const at::Tensor& found_inf, const at::Tensor& scale_before, const ScaleLaw& law) {
  hysteresis_tracker_.sub_(found_inf);
  const auto found = found_inf.gt(0);
  scale_.copy_(at::where(found.logical_and(hysteresis_tracker_.gt(0)), scale_before, scale_));
  hysteresis_tracker_.masked_fill_(found.logical_not(), static_cast<double>(law.hysteresis));
}

void ScaleState::set_scale(const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  scale_.copy_(scale.reshape(scale_.sizes()));
}

std::map<std::string, at::Tensor> ScaleState::tensors() const {
  if (!placed()) {
    return {};
  }
  return {{"scale", scale_},
          {"_growth_tracker", growth_tracker_},
          {"_hysteresis_tracker", hysteresis_tracker_},
          {"_skips_in_a_row", skips_}};
}

void ScaleState::set(const ScaleValues& values) {
  values_ = values;
  if (placed()) {
    const at::NoGradGuard no_grad;
    scale_.fill_(values.scale);
    growth_tracker_.fill_(values.growth_tracker);
    hysteresis_tracker_.fill_(values.hysteresis_tracker);
    skips_.fill_(values.skips);
  }
}

ScaleValues ScaleState::values() const {
  if (!placed()) {
    return values_;
  }
  return {scale_.item<double>(), growth_tracker_.item<std::int64_t>(), hysteresis_tracker_.item<std::int64_t>(),
          skips_.item<std::int64_t>()};
}

}  // namespace lockstep::amp
