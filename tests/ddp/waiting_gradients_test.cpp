// SPDX-License-Identifier: Apache-2.0
// Gradients that are copied together arrive as they would one by one; on the CPU none waits.
#include "ddp/waiting_gradients.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::ddp {
namespace {

TEST(WaitingGradients, none_waits_on_the_cpu) {
  WaitingGradients waiting;
  const auto slot = at::zeros({4});
  EXPECT_FALSE(waiting.hold(slot, at::ones({4})));
  waiting.deliver(at::ones({}));
  EXPECT_TRUE(at::equal(slot, at::zeros({4})));
}

}  // namespace
}  // namespace lockstep::ddp
