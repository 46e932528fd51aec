// SPDX-License-Identifier: Apache-2.0
#include "core/digest.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace lockstep::core {
namespace {

TEST(Digest, one_flipped_bit_anywhere_is_seen) {
  for (const std::int64_t bytes : {1, 7, 8, 9, 31, 64}) {
    auto t = at::randint(0, 256, {bytes}, at::kByte);
    const auto before = digest(t);
    for (std::int64_t bit = 0; bit < bytes * 8; ++bit) {
      auto* byte = t.mutable_data_ptr<std::uint8_t>() + bit / 8;
      *byte = static_cast<std::uint8_t>(*byte ^ (1U << (bit % 8)));
      EXPECT_NE(digest(t), before) << bytes << " bytes, bit " << bit;
      *byte = static_cast<std::uint8_t>(*byte ^ (1U << (bit % 8)));
    }
    EXPECT_EQ(digest(t), before);
  }
}

TEST(Digest, depends_on_place) {
  const auto t = at::arange(64, at::kDouble);
  EXPECT_NE(digest(t), digest(t.flip(0)));
  EXPECT_NE(digest(t), digest(t.roll(1)));
  EXPECT_NE(digest(at::zeros({8})), digest(at::zeros({9})));
}

TEST(Digest, compares_bits_not_values) {
  EXPECT_NE(digest(at::zeros({4})), digest(-at::zeros({4})));
  const auto nan = at::full({4}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(digest(nan), digest(nan.clone()));
}

TEST(Digest, follows_logical_order_not_memory_order) {
  const auto t = at::randn({2, 3, 4, 5});
  EXPECT_EQ(digest(t), digest(t.contiguous(at::MemoryFormat::ChannelsLast)));
  const auto wide = at::randn({4, 6});
  EXPECT_EQ(digest(wide.t()), digest(wide.t().contiguous()));
}

TEST(Digest, text_has_sixteen_digits) {
  EXPECT_EQ(digest_text(0x1fULL), "000000000000001f");
}

}  // namespace
}  // namespace lockstep::core
