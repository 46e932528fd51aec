// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "examples/launched.h"

namespace examples {
namespace {

TEST(GradientAccumulationExample, reduces_only_where_it_steps) {
  const auto run = launch(2, "gradient_accumulation");
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_EQ(run.number("all_reduces"), 5) << run.output;
  EXPECT_EQ(run.number("without_no_sync"), 20) << run.output;
  EXPECT_EQ(run.result.at("sums_equal"), "true") << run.output;
}

}  // namespace
}  // namespace examples
