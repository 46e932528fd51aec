// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "examples/launched.h"

namespace examples {
namespace {

TEST(DataParallelExample, learns_and_keeps_replicas_equal) {
  for (int ranks = 1; ranks <= 2; ++ranks) {
    const auto run = launch(ranks, "data_parallel");
    ASSERT_EQ(run.exit_code, 0) << run.output;
    EXPECT_LT(run.number("loss"), 0.02) << run.output;
    EXPECT_EQ(run.result.at("replicas_equal"), "true") << run.output;
  }
}

}  // namespace
}  // namespace examples
