// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "examples/launched.h"

namespace examples {
namespace {

TEST(AllReduceExample, sums_over_any_number_of_ranks) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const auto run = launch(ranks, "all_reduce");
    ASSERT_EQ(run.exit_code, 0) << run.output;
    EXPECT_EQ(run.number("sum"), ranks * (ranks - 1) / 2) << run.output;
    EXPECT_EQ(run.number("ranks"), ranks) << run.output;
  }
}

}  // namespace
}  // namespace examples
