// SPDX-License-Identifier: Apache-2.0
// The loss scale and the counters that steer it, as device tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>

#include "amp/scale_law.h"

namespace lockstep::amp {

/// The scale and its counters on the host.
struct ScaleValues {
  double scale = 0;
  std::int64_t growth_tracker = 0;
  std::int64_t hysteresis_tracker = 0;  // overflows left before the scale falls
  std::int64_t skips = 0;               // overflows in a row
};

/// Values wait on the host until `place` puts them on a device; from then on the device's count.
class ScaleState {
 public:
  explicit ScaleState(const ScaleValues& values) : values_(values) {}

  bool placed() const { return scale_.defined(); }
  /// Throws InputError for a device that is neither CPU nor CUDA.
  void place(c10::Device device);

  /// One fp32 element; undefined until placed. The same tensor for ever.
  const at::Tensor& scale() const { return scale_; }
  /// Overflows in a row, one fp32 element; undefined until placed.
  const at::Tensor& skips() const { return skips_; }
  /// One fp32 element: 1/scale, rounded once (from fp64).
  at::Tensor inverse() const;

  /// One update, on the device alone: one kernel on CUDA. `found_inf`: one fp32 element, 0 or 1.
  void advance(const at::Tensor& found_inf, const ScaleLaw& law);

  void set_scale(const at::Tensor& scale);
  /// All of it where it lives, by the names of the saved state; empty until placed.
  std::map<std::string, at::Tensor> tensors() const;
  void set(const ScaleValues& values);
  /// Waits for the device.
  ScaleValues values() const;

 private:
  ScaleValues values_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;      // int32
  at::Tensor hysteresis_tracker_;  // fp32
  at::Tensor skips_;               // fp32
};

}  // namespace lockstep::amp
