// SPDX-License-Identifier: Apache-2.0
#include "core/check.h"

#include <gtest/gtest.h>

namespace lockstep::core {
namespace {

TEST(Check, message_leaves_out_what_is_not_given) {
  EXPECT_EQ(message("a.b", {.what = "no"}), "[a.b] no");
  EXPECT_EQ(message("a.b", {"no", "1", "2", "try 3"}), "[a.b] no; got 1, expected 2; try 3");
  EXPECT_EQ(message("a.b", {.what = "no", .expected = "2"}), "[a.b] no; expected 2");
}

TEST(Check, throws_an_input_error_that_is_a_runtime_error) {
  EXPECT_THROW(fail("a.b", {"no"}), InputError);
  EXPECT_NO_THROW(check(true, "a.b", []() -> Problem { throw 1; }));
  EXPECT_THROW(check(false, "a.b", [] { return Problem{"no"}; }), std::runtime_error);
}

}  // namespace
}  // namespace lockstep::core
