// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "examples/launched.h"

namespace examples {
namespace {

void expect_found(const Launched& run, const std::string& kind, const std::string& rank) {
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_EQ(run.result.at("found_at"), "15") << run.output;
  EXPECT_EQ(run.result.at("kind"), kind) << run.output;
  EXPECT_EQ(run.result.at("rank"), rank) << run.output;
  EXPECT_EQ(run.result.at("equal_afterwards"), "true") << run.output;
}

TEST(ReplicaDriftExample, each_fault_is_found_at_the_next_check_and_healed) {
  expect_found(launch(3, "replica_drift --fault bit"), "parameter", "1");
  expect_found(launch(3, "replica_drift --fault stale --rank 0"), "parameter", "0");
  expect_found(launch(2, "replica_drift --fault lr"), "learning_rate", "1");
}

}  // namespace
}  // namespace examples
