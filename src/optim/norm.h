// SPDX-License-Identifier: Apache-2.0
// Norms over spans, in plain numbers and addresses: CUDA sources need no torch header.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "optim/pass.h"

namespace lockstep::optim {

enum class Norm : std::uint8_t { one, two, inf };

/// Gradients of one kind that lie in a row.
struct GradSpan {
  Kind kind;
  void* data;
  std::int64_t count;
};

/// What the host wants to know of a norm, and where its parts go. Addresses on the spans' device.
struct ClipTarget {
  double max_norm = 0;
  const float* grad_scale = nullptr;
  float* norm = nullptr;
  float* factor = nullptr;
  float* found_inf = nullptr;
};

/// Adds what one more element, or one more part, brings to a sum of powers. The maximum lets NaN through.
template <Norm kNorm>
struct Power {
  template <class F>
  LOCKSTEP_BOTH static F of(F x) {
    using std::abs;
    return kNorm == Norm::two ? x * x : x < F(0) ? -x : x;
  }
  template <class F>
  LOCKSTEP_BOTH static F join(F a, F b) {
    return kNorm == Norm::inf ? (b > a || b != b ? b : a) : a + b;
  }
};

/// From the joined powers to the clip. The fp32 roundings are those of PyTorch's clip_grad_norm_.
LOCKSTEP_BOTH void settle_clip(double power, Norm norm, const ClipTarget& target) {
  double length = norm == Norm::two ? sqrt(power) : power;
  if (target.grad_scale != nullptr) {
    length /= static_cast<double>(*target.grad_scale);
  }
  const auto rounded = static_cast<float>(length);
  const bool finite = rounded - rounded == 0.0f;
  const float factor = static_cast<float>(target.max_norm) / (rounded + 1e-6f);
  *target.norm = rounded;
  *target.factor = finite && factor < 1.0f ? factor : 1.0f;
  *target.found_inf = finite ? 0.0f : 1.0f;
}

/// Joined powers of all elements: a fixed order of sums, whatever the number of threads.
double power_on_cpu(const std::vector<GradSpan>& spans, Norm norm);

/// The same on a CUDA device, written to `power`, in the order of its current stream, without waiting. `target`, unless
/// null: settle_clip at once.
void power_on_cuda(int device, const std::vector<GradSpan>& spans, Norm norm, double* power, const ClipTarget* target);

/// settle_clip on a CUDA device.
void settle_on_cuda(int device, const double* power, Norm norm, const ClipTarget& target);

/// Multiplies every element by `*factor`, in fp32 (fp64 elements in fp64); a factor of 1 leaves every bit as it is.
void scale_on_cpu(const std::vector<GradSpan>& spans, const float* factor);
void scale_on_cuda(int device, const std::vector<GradSpan>& spans, const float* factor);

}  // namespace lockstep::optim
