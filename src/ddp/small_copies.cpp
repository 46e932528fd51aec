// SPDX-License-Identifier: Apache-2.0
#include "ddp/small_copies.h"

#include <ATen/OpMathType.h>

namespace lockstep::ddp {
namespace {

constexpr std::int64_t kMost = 8192;  // elements; beyond, ATen's wider vectors win back what its dispatch costs

bool suits(const at::Tensor& slot, const at::Tensor& gradient) {
  return gradient.numel() <= kMost && gradient.is_cpu() && gradient.layout() == at::kStrided &&
         gradient.strides() == slot.strides() && gradient.is_non_overlapping_and_dense() && !gradient.is_neg();
}

/// 16-bit numbers are multiplied in fp32 and rounded once, as ATen does it.
template <class Number>
void scale_into(const at::Tensor& slot, const at::Tensor& gradient, double scale) {
  using Wide = at::opmath_type<Number>;
  const auto factor = static_cast<Wide>(scale);
  const auto* from = gradient.const_data_ptr<Number>();
  auto* to = slot.mutable_data_ptr<Number>();
  const auto count = gradient.numel();
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<Number>(static_cast<Wide>(from[i]) * factor);
  }
  slot.unsafeGetTensorImpl()->bump_version();  // a graph that saved the old values must notice
}

}  // namespace

bool scale_if_small(const at::Tensor& slot, const at::Tensor& gradient, double scale) {
  if (!suits(slot, gradient)) {
    return false;
  }
  switch (gradient.scalar_type()) {
    case at::kFloat:
      scale_into<float>(slot, gradient, scale);
      return true;
    case at::kDouble:
      scale_into<double>(slot, gradient, scale);
      return true;
    case at::kHalf:
      scale_into<at::Half>(slot, gradient, scale);
      return true;
    case at::kBFloat16:
      scale_into<at::BFloat16>(slot, gradient, scale);
      return true;
    default:
      return false;
  }
}

}  // namespace lockstep::ddp
