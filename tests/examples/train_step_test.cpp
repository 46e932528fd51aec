// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "examples/launched.h"

namespace examples {
namespace {

TEST(TrainStepExample, ends_with_the_same_weights_both_ways) {
  const auto run = launch(2, "train_step");
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_EQ(run.result.at("equal"), "true") << run.output;
  EXPECT_LT(run.number("loss"), 0.5) << run.output;
}

}  // namespace
}  // namespace examples
