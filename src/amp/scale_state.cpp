// SPDX-License-Identifier: Apache-2.0
#include "amp/scale_state.h"

#include <ATen/ATen.h>

#include "core/check.h"
#include "core/moved.h"

namespace lockstep::amp {

void ScaleState::place(c10::Device device) {
  core::check(device.is_cpu() || device.is_cuda(), "amp.scale", [&] {
    return core::Problem{"no loss scale for a loss on this device", core::str(device), "CPU or CUDA"};
  });
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
  const auto found = core::moved(found_inf, scale_.device());
  const ScaleCells cells{scale_.mutable_data_ptr<float>(), growth_tracker_.mutable_data_ptr<std::int32_t>(),
                         hysteresis_tracker_.mutable_data_ptr<float>(), skips_.mutable_data_ptr<float>()};
  if (scale_.is_cuda()) {
    move_scale_on_cuda(scale_.device().index(), cells, found.const_data_ptr<float>(), law);
  } else {
    move_scale(cells, *found.const_data_ptr<float>(), law);
  }
  if (!scale_.is_inference()) {
    scale_.unsafeGetTensorImpl()->bump_version();  // a backward that still needs the old scale is an error
  }
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
