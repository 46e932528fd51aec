// SPDX-License-Identifier: Apache-2.0
#include "core/layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

namespace lockstep::core {
namespace {

/// Hands out arena space, one group at a time, and cuts it into buckets.
class Planner {
 public:
  Planner(Layout& layout, const BucketLimits& limits) : layout_(layout), limits_(limits) {}

  void place(int index, const TensorSpec& spec) {
    const int g = group_of(spec);
    Group& group = layout_.groups[static_cast<std::size_t>(g)];
    const int b = open_bucket(g);
    Bucket& bucket = layout_.buckets[static_cast<std::size_t>(b)];
    layout_.slots[static_cast<std::size_t>(index)] = {g, b, group.numel, spec.numel()};
    bucket.tensors.push_back(index);
    group.numel += padded(spec.numel(), group.dtype);
    bucket.end = group.numel;
    if ((bucket.end - bucket.begin) * item_size(group.dtype) >= limit_of(b)) {
      open_[static_cast<std::size_t>(g)].reset();
    }
  }

 private:
  static std::int64_t item_size(at::ScalarType dtype) { return static_cast<std::int64_t>(c10::elementSize(dtype)); }

  static std::int64_t padded(std::int64_t numel, at::ScalarType dtype) {
    const std::int64_t step = kAlignment / item_size(dtype);
    return (numel + step - 1) / step * step;
  }

  int group_of(const TensorSpec& spec) {
    auto& groups = layout_.groups;
    const auto same = [&](const Group& g) { return g.dtype == spec.dtype && g.device == spec.device; };
    const auto found = std::find_if(groups.begin(), groups.end(), same);
    const auto index = static_cast<int>(found - groups.begin());
    if (found == groups.end()) {
      groups.push_back({spec.dtype, spec.device});
      open_.emplace_back();
    }
    return index;
  }

  int open_bucket(int group) {
    auto& open = open_[static_cast<std::size_t>(group)];
    if (!open) {
      const std::int64_t begin = layout_.groups[static_cast<std::size_t>(group)].numel;
      open = static_cast<int>(layout_.buckets.size());
      layout_.buckets.push_back({group, begin, begin, {}});
    }
    return *open;
  }

  std::int64_t limit_of(int bucket) const { return bucket == 0 ? limits_.first : limits_.rest; }

  Layout& layout_;
  BucketLimits limits_;
  std::vector<std::optional<int>> open_;
};

}  // namespace

std::int64_t TensorSpec::numel() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

Layout plan_layout(const std::vector<TensorSpec>& specs, const BucketLimits& limits) {
  Layout layout;
  layout.slots.resize(specs.size());
  Planner planner(layout, limits);
  for (auto i = static_cast<int>(specs.size()) - 1; i >= 0; --i) {
    planner.place(i, specs[static_cast<std::size_t>(i)]);
  }
  return layout;
}

}  // namespace lockstep::core
