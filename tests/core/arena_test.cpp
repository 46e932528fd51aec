// SPDX-License-Identifier: Apache-2.0
#include "core/arena.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::core {
namespace {

TensorSpec spec_of(const at::Tensor& t) {
  return {"t", t.sizes().vec(), t.strides().vec(), t.scalar_type(), t.device()};
}

Arena arena_for(const std::vector<TensorSpec>& specs) {
  return {plan_layout(specs, {}), specs};
}

TEST(Arena, aliases_keep_dense_strides_and_share_the_flat_memory) {
  const auto channels_last = at::empty({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto transposed = at::empty({4, 3}).t();
  const auto arena = arena_for({spec_of(channels_last), spec_of(transposed), spec_of(at::empty({}))});
  EXPECT_EQ(arena.alias(0).strides(), channels_last.strides());
  EXPECT_EQ(arena.alias(1).strides(), transposed.strides());
  arena.groups()[0].fill_(3);
  EXPECT_TRUE(at::equal(arena.alias(0), at::full({2, 3, 4, 5}, 3.0F)));
  EXPECT_EQ(arena.alias(2).item<float>(), 3);
}

TEST(Arena, tensors_with_gaps_or_overlap_get_row_major_aliases) {
  const auto gapped = at::empty({4, 4}).narrow(1, 0, 2);
  const auto expanded = at::empty({3, 1}).expand({3, 5});
  EXPECT_FALSE(is_dense(spec_of(gapped)));
  EXPECT_FALSE(is_dense(spec_of(expanded)));
  const auto arena = arena_for({spec_of(gapped), spec_of(expanded)});
  EXPECT_TRUE(arena.alias(0).is_contiguous());
  EXPECT_TRUE(arena.alias(1).is_contiguous());
}

TEST(Arena, an_alias_is_no_autograd_view) {
  const auto arena = arena_for({spec_of(at::empty({3}))});
  auto alias = arena.alias(0);
  EXPECT_FALSE(alias.is_view());
  EXPECT_NO_THROW(alias.detach_());
}

TEST(Arena, a_detached_holder_keeps_its_values) {
  auto arena = arena_for({spec_of(at::empty({3}))});
  const auto held = arena.alias(0);
  held.fill_(1);
  arena.detach_holder(0);
  arena.alias(0).fill_(2);
  EXPECT_TRUE(at::equal(held, at::ones({3})));
  EXPECT_TRUE(at::equal(arena.groups()[0].narrow(0, 0, 3), at::full({3}, 2.0F)));
}

TEST(Arena, another_dtype_keeps_the_offsets) {
  const std::vector<TensorSpec> specs{spec_of(at::empty({5}, at::kHalf)), spec_of(at::empty({7}, at::kHalf))};
  const auto layout = plan_layout(specs, {});
  const Arena masters(layout, specs, at::kFloat);
  EXPECT_EQ(masters.alias(0).scalar_type(), at::kFloat);
  EXPECT_EQ(masters.alias(0).storage_offset(), layout.slots[0].offset);
}

}  // namespace
}  // namespace lockstep::core
