// SPDX-License-Identifier: Apache-2.0
// From digests to the element: what one tensor's report says.
#include <limits>

#include "lockstep/replica/replica_check.h"
#include "replica/flip.h"
#include "support/models.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using test::flip_bit;
using test::run;

/// The report on a tensor that `make(rank)` gives to each rank; nothing where they are equal.
std::optional<ReplicaReport> compared(const World& world, const std::function<at::Tensor(int)>& make) {
  ReplicaCheck check(world, {.on_mismatch = OnMismatch::Warn});
  const auto tensor = make(world.rank());
  check.cover("t", [&] { return std::vector<at::Tensor>{tensor}; });
  check.compare();
  return check.verdict();
}

struct Expected {
  std::vector<std::int64_t> index;
  std::string here;
  std::string there;
};

void expect_difference(const std::optional<ReplicaReport>& report, const Expected& expected) {
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->differences.size(), 1U);
  const auto& difference = report->differences[0];
  EXPECT_EQ(difference.name, "t");
  EXPECT_EQ(difference.ranks, std::vector<int>{1});
  EXPECT_EQ(difference.index, expected.index) << difference.text();
  EXPECT_EQ(difference.values[0], expected.here);
  EXPECT_EQ(difference.values[1], expected.there);
}

// Cases O1: a digest that adds or XORs plain words takes some of these for equal.
TEST(Elements, O1_sums_that_cancel_places_and_signs_are_all_seen) {
  run(2, [](World& world) {
    const auto odd = [](int rank) { return rank == 1; };
    expect_difference(compared(world, [&](int rank) { return odd(rank) ? at::zeros({4}) : at::ones({4}); }),
                      {{0}, "1 (0x3f800000)", "0 (0x00000000)"});
    expect_difference(compared(world,
                               [&](int rank) {
                                 return odd(rank) ? at::tensor({1.F, 3.F, 2.F}) : at::tensor({1.F, 2.F, 3.F});
                               }),
                      {{1}, "2 (0x40000000)", "3 (0x40400000)"});
    expect_difference(compared(world,
                               [&](int rank) {
                                 auto t = at::ones({2, 3});
                                 if (odd(rank)) {
                                   flip_bit(t, 5, 0);
                                 }
                                 return t;
                               }),
                      {{1, 2}, "1 (0x3f800000)", "1.00000012 (0x3f800001)"});
    expect_difference(compared(world, [&](int rank) { return odd(rank) ? -at::zeros({1}) : at::zeros({1}); }),
                      {{0}, "0 (0x00000000)", "-0 (0x80000000)"});
    const auto nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(compared(world, [&](int) { return at::full({3}, nan); }).has_value());
  });
}

TEST(Elements, every_dtype_is_read_by_its_own_width) {
  run(2, [](World& world) {
    const auto one_bit_apart = [&](at::ScalarType dtype) {
      return compared(world, [&](int rank) {
        auto t = at::ones({2, 2, 2}, dtype);
        if (rank == 1) {
          flip_bit(t, 6, 0);
        }
        return t;
      });
    };
    expect_difference(one_bit_apart(at::kHalf), {{1, 1, 0}, "1 (0x3c00)", "1.001 (0x3c01)"});
    expect_difference(one_bit_apart(at::kBFloat16), {{1, 1, 0}, "1 (0x3f80)", "1.0078 (0x3f81)"});
    expect_difference(one_bit_apart(at::kDouble),
                      {{1, 1, 0}, "1 (0x3ff0000000000000)", "1.0000000000000002 (0x3ff0000000000001)"});
    expect_difference(one_bit_apart(at::kLong), {{1, 1, 0}, "1 (0x0000000000000001)", "0 (0x0000000000000000)"});
    expect_difference(one_bit_apart(at::kByte), {{1, 1, 0}, "1 (0x01)", "0 (0x00)"});
    expect_difference(one_bit_apart(at::kBool), {{1, 1, 0}, "1 (0x01)", "0 (0x00)"});
  });
}

// 1.2 MB: two rounds of parts, then the bytes. Parts of 256 leave a short last one.
TEST(Elements, large_tensors_are_searched_in_parts) {
  run(3, [](World& world) {
    for (const std::int64_t place : {0, 1023, 1024, 150'001, 299'998, 299'999}) {
      const auto report = compared(world, [&](int rank) {
        auto t = at::arange(300'000, at::kFloat).view({100, 3000});
        if (rank == 2) {
          flip_bit(t, place, 31);
          flip_bit(t, 299'999, 30);
        }
        return t;
      });
      ASSERT_TRUE(report.has_value());
      EXPECT_EQ(report->differences[0].index, (std::vector<std::int64_t>{place / 3000, place % 3000}));
      EXPECT_EQ(report->differences[0].ranks, std::vector<int>{2});
      EXPECT_TRUE(report->differences[0].majority);
    }
  });
}

TEST(Elements, memory_formats_are_compared_by_logical_place) {
  run(2, [](World& world) {
    const auto values = test::random({2, 3, 4, 5}, 1);
    const auto format = [](int rank) {
      return rank == 0 ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast;
    };
    EXPECT_FALSE(compared(world, [&](int rank) { return values.contiguous(format(rank)); }).has_value());
    const auto report = compared(world, [&](int rank) {
      auto t = values.clone(format(rank));
      if (rank == 1) {
        t[1][2][3][4] = 7;
      }
      return t;
    });
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->differences[0].index, (std::vector<std::int64_t>{1, 2, 3, 4}));
  });
}

TEST(Elements, scalars_and_empty_tensors_have_places_too) {
  run(2, [](World& world) {
    EXPECT_FALSE(compared(world, [](int) { return at::zeros({0, 4}); }).has_value());
    const auto report = compared(world, [](int rank) { return at::full({}, rank, at::kLong); });
    ASSERT_TRUE(report.has_value());
    EXPECT_TRUE(report->differences[0].index.empty());
    EXPECT_TRUE(test::mentions(report->text(), "tensor t differs from rank 0 on rank 1 at []: 1 (0x0000000000000001)"))
        << report->text();
  });
}

}  // namespace
}  // namespace lockstep
