// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "examples/launched.h"

namespace examples {
namespace {

const std::string kShort = "fashion_mnist --epochs 1 --samples 4000";

TEST(FashionMnistExample, trains_on_two_ranks_as_on_one) {
  const auto one = launch(1, kShort);
  const auto two = launch(2, kShort);
  for (const auto& run : {one, two}) {
    ASSERT_EQ(run.exit_code, 0) << run.output;
    EXPECT_GT(run.number("accuracy"), 0.6) << run.output;
    EXPECT_GT(run.number("images_per_s"), 0) << run.output;
    EXPECT_EQ(run.result.at("digests_equal"), "true") << run.output;
  }
  EXPECT_EQ(two.number("ranks"), 2);
  // The same global batches in the same order: only sums' rounding differs, which training then amplifies.
  EXPECT_NEAR(one.number("accuracy"), two.number("accuracy"), 0.02) << one.output << two.output;
}

TEST(FashionMnistExample, keeps_replicas_equal_at_other_levels_and_uneven_sizes) {
  for (const std::string level : {"O0", "O1", "O3"}) {
    const auto run = launch(2, "fashion_mnist --epochs 1 --samples 333 --batch 50 --opt-level " + level);
    ASSERT_EQ(run.exit_code, 0) << run.output;
    EXPECT_EQ(run.result.at("digests_equal"), "true") << run.output;
  }
}

TEST(FashionMnistExample, says_what_is_missing) {
  const auto run = launch(2, "fashion_mnist --data /nonexistent");
  EXPECT_NE(run.exit_code, 0);
  EXPECT_NE(run.output.find("there is no train-images-idx3-ubyte"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("--data"), std::string::npos) << run.output;
}

}  // namespace
}  // namespace examples
