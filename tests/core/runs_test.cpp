// SPDX-License-Identifier: Apache-2.0
#include "core/runs.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::core {
namespace {

constexpr LaneWidths kHalfAndFloat{2, 0, 4};

Piece piece(std::uintptr_t low, std::uintptr_t high, std::int64_t count, std::uint64_t tag = 0) {
  return {.at = {low, 0, high}, .count = count, .tag = tag};
}

TEST(Runs, an_arena_is_one_run_in_whatever_order_its_tensors_come) {
  for (const auto& pieces : {std::vector{piece(100, 1000, 10), piece(120, 1040, 5), piece(130, 1060, 1)},
                             std::vector{piece(130, 1060, 1), piece(120, 1040, 5), piece(100, 1000, 10)},
                             std::vector{piece(120, 1040, 5), piece(130, 1060, 1), piece(100, 1000, 10)}}) {
    const auto runs = join(pieces, kHalfAndFloat, "a.b");
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].count, 16);
    EXPECT_EQ(runs[0].at[0], 100u);
    EXPECT_EQ(runs[0].at[2], 1000u);
  }
}

TEST(Runs, a_gap_in_any_lane_or_another_tag_parts_them) {
  EXPECT_EQ(join({piece(100, 1000, 10), piece(122, 1040, 5)}, kHalfAndFloat, "a.b").size(), 2u);
  EXPECT_EQ(join({piece(100, 1000, 10), piece(120, 1044, 5)}, kHalfAndFloat, "a.b").size(), 2u);
  EXPECT_EQ(join({piece(100, 1000, 10, 1), piece(120, 1040, 5, 2)}, kHalfAndFloat, "a.b").size(), 2u);
  EXPECT_EQ(join({piece(100, 1000, 10, 2), piece(120, 1040, 5, 2)}, kHalfAndFloat, "a.b").size(), 1u);
}

TEST(Runs, other_lanes_need_not_rise_together) {
  const auto runs = join({piece(100, 5000, 10), piece(120, 1000, 5), piece(130, 1020, 1)}, kHalfAndFloat, "a.b");
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].count, 10);
  EXPECT_EQ(runs[1].count, 6);
}

TEST(Runs, empty_pieces_vanish_wherever_they_stand) {
  for (std::size_t place = 0; place < 4; ++place) {
    std::vector pieces{piece(100, 1000, 10), piece(120, 1040, 5), piece(130, 1060, 1)};
    pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(place), piece(0, 0, 0));
    EXPECT_EQ(join(pieces, kHalfAndFloat, "a.b").size(), 1u) << place;
  }
  EXPECT_TRUE(join({piece(0, 0, 0)}, kHalfAndFloat, "a.b").empty());
  EXPECT_TRUE(join({}, kHalfAndFloat, "a.b").empty());
}

TEST(Runs, counts_beyond_32_bits_are_kept) {
  const std::int64_t many = (std::int64_t{1} << 33) + 1;
  const auto base = std::uintptr_t{1} << 40;
  const auto next = base + static_cast<std::uintptr_t>(many) * 2;
  const auto runs = join({{.at = {base}, .count = many}, {.at = {next}, .count = many}}, {2}, "a.b");
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].count, 2 * many);
}

TEST(Runs, overlap_is_refused) {
  EXPECT_THROW(join({piece(100, 1000, 10), piece(118, 1040, 5)}, kHalfAndFloat, "a.b"), InputError);
  EXPECT_THROW(join({piece(100, 1000, 10), piece(100, 2000, 10)}, kHalfAndFloat, "a.b"), InputError);
}

}  // namespace
}  // namespace lockstep::core
