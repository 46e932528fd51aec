// SPDX-License-Identifier: Apache-2.0
#include "core/layout.h"

#include <gtest/gtest.h>

namespace lockstep::core {
namespace {

TensorSpec floats(const std::string& name, std::int64_t count, at::ScalarType dtype = at::kFloat) {
  return {name, {count}, {1}, dtype};
}

std::vector<std::vector<int>> buckets(const Layout& layout) {
  std::vector<std::vector<int>> result;
  for (const auto& bucket : layout.buckets) {
    result.push_back(bucket.tensors);
  }
  return result;
}

using Lists = std::vector<std::vector<int>>;

TEST(Layout, last_registered_tensors_come_first) {
  const auto layout = plan_layout({floats("a", 100), floats("b", 100)}, {1 << 20, 1 << 20});
  EXPECT_EQ(buckets(layout), (Lists{{1, 0}}));
  EXPECT_LT(layout.slots[1].offset, layout.slots[0].offset);
}

TEST(Layout, test_single_limit_single_dtype) {
  const auto layout = plan_layout({floats("a", 100), floats("b", 100), floats("c", 100), floats("d", 100)}, {400, 400});
  EXPECT_EQ(buckets(layout), (Lists{{3}, {2}, {1}, {0}}));
}

TEST(Layout, test_multi_limit_single_dtype) {
  const auto layout = plan_layout({floats("a", 10), floats("b", 10), floats("c", 10), floats("d", 10)}, {40, 256});
  EXPECT_EQ(buckets(layout), (Lists{{3}, {2, 1}, {0}}));
}

TEST(Layout, test_single_limit_multi_dtype) {
  const auto layout = plan_layout({floats("a", 50), floats("b", 25, at::kDouble), floats("c", 50),
                                   floats("d", 25, at::kDouble), floats("e", 50), floats("f", 25, at::kDouble)},
                                  {400, 400});
  EXPECT_EQ(buckets(layout), (Lists{{5, 3}, {4, 2}, {1}, {0}}));
  EXPECT_EQ(layout.groups.size(), 2U);
}

TEST(Layout, test_multi_limit_multi_dtype) {
  const auto layout = plan_layout({floats("a", 50), floats("b", 25, at::kDouble), floats("c", 50),
                                   floats("d", 25, at::kDouble), floats("e", 50), floats("f", 25, at::kDouble)},
                                  {200, 400});
  // The first bucket closes at 200 bytes, every later one, of whichever dtype, at 400.
  EXPECT_EQ(buckets(layout), (Lists{{5}, {4, 2}, {3, 1}, {0}}));
}

TEST(Layout, slots_are_aligned_disjoint_and_inside_their_bucket) {
  const std::vector<TensorSpec> specs{floats("a", 1),   floats("b", 33, at::kHalf),         floats("c", 0),
                                      floats("d", 129), floats("e", 7, at::kComplexDouble), floats("f", 64, at::kHalf)};
  const auto layout = plan_layout(specs, {64, 512});
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto& slot = layout.slots[i];
    const auto& bucket = layout.buckets[static_cast<std::size_t>(slot.bucket)];
    const auto item = static_cast<std::int64_t>(c10::elementSize(specs[i].dtype));
    EXPECT_EQ(slot.offset * item % kAlignment, 0) << specs[i].name;
    EXPECT_GE(slot.offset, bucket.begin);
    EXPECT_LE(slot.offset + slot.numel, bucket.end);
    EXPECT_EQ(layout.groups[static_cast<std::size_t>(slot.group)].dtype, specs[i].dtype);
    EXPECT_EQ(bucket.group, slot.group);
    for (std::size_t j = 0; j < i; ++j) {
      const auto& other = layout.slots[j];
      EXPECT_TRUE(other.group != slot.group || other.offset + other.numel <= slot.offset ||
                  slot.offset + slot.numel <= other.offset);
    }
  }
}

TEST(Layout, buckets_tile_each_group) {
  const auto layout = plan_layout({floats("a", 100), floats("b", 3), floats("c", 1000)}, {256, 512});
  std::int64_t end = 0;
  for (const auto& bucket : layout.buckets) {
    EXPECT_EQ(bucket.begin, end);
    end = bucket.end;
  }
  EXPECT_EQ(end, layout.groups[0].numel);
}

TEST(Layout, nothing_gives_nothing) {
  const auto layout = plan_layout({}, {});
  EXPECT_TRUE(layout.buckets.empty() && layout.groups.empty() && layout.slots.empty());
}

}  // namespace
}  // namespace lockstep::core
