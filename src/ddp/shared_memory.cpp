// SPDX-License-Identifier: Apache-2.0
#include "ddp/shared_memory.h"

#include <algorithm>
#include <cstdint>

namespace lockstep::ddp {
namespace {

/// The bytes that a gradient lies in.
struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
  at::Tensor* gradient;
};

std::int64_t extent(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return last + 1;
}

bool may_share(const at::Tensor& gradient) {
  return gradient.defined() && gradient.layout() == at::kStrided && gradient.numel() > 0 && !gradient.requires_grad() &&
         gradient.storage().use_count() > 1;
}

std::vector<Range> ranges_of(const std::vector<at::Tensor*>& gradients) {
  std::vector<Range> ranges;
  for (auto* gradient : gradients) {
    if (may_share(*gradient)) {
      const auto begin = reinterpret_cast<std::uintptr_t>(gradient->const_data_ptr());
      const auto bytes = static_cast<std::uintptr_t>(extent(*gradient)) * gradient->element_size();
      ranges.push_back({begin, begin + bytes, gradient});
    }
  }
  std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return ranges;
}

}  // namespace

void separate(const std::vector<at::Tensor*>& gradients) {
  std::uintptr_t taken = 0;
  for (const auto& range : ranges_of(gradients)) {
    if (range.begin < taken) {
      *range.gradient = range.gradient->clone();
    } else {
      taken = range.end;
    }
  }
}

}  // namespace lockstep::ddp
