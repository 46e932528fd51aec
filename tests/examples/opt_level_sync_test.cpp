// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "examples/launched.h"

namespace examples {
namespace {

Launched sync(const std::string& level, const std::string& more = "") {
  return launch(2, "opt_level_sync --steps 20 --opt-level " + level + more);
}

TEST(OptLevelSyncExample, replicas_are_equal_at_every_level) {
  for (const auto* level : {"O0", "O1", "O2", "O3"}) {
    const auto run = sync(level);
    ASSERT_EQ(run.exit_code, 0) << run.output;
    EXPECT_EQ(run.number("max_diff"), 0) << level << "\n" << run.output;
    EXPECT_EQ(run.result.at("digests_equal"), "true") << level << "\n" << run.output;
  }
}

TEST(OptLevelSyncExample, copies_leave_replicas_apart_and_the_digest_names_the_tensor) {
  const auto run = sync("O2", " --legacy");
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_GT(run.number("max_diff"), 0.01) << run.output;
  EXPECT_EQ(run.result.at("digests_equal"), "false") << run.output;
  EXPECT_NE(run.output.find("0.weight"), std::string::npos) << run.output;
}

// The reporter saw no fault at O1: there the exported tensors were the parameters.
TEST(OptLevelSyncExample, copies_went_unnoticed_at_o1) {
  const auto run = sync("O1", " --legacy");
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_EQ(run.number("max_diff"), 0) << run.output;
}

TEST(OptLevelSyncExample, refuses_a_level_that_does_not_exist) {
  const auto run = sync("O4");
  EXPECT_NE(run.exit_code, 0);
  EXPECT_NE(run.output.find("{O0,O1,O2,O3}"), std::string::npos) << run.output;
}

}  // namespace
}  // namespace examples
