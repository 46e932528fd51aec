// SPDX-License-Identifier: Apache-2.0
// On the CPU it is LibTorch's own.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/nn/pooling.h"

namespace lockstep::nn {
namespace {

TEST(MaxPool2d, IsTorchsModule) {
  const auto options = torch::nn::MaxPool2dOptions({3, 2}).stride({2, 1}).padding({1, 0});
  MaxPool2d ours(options);
  torch::nn::MaxPool2d torchs(options);
  const auto x = at::randn({2, 8, 9, 7}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  const auto again = x.detach().clone().requires_grad_();
  const auto y = ours->forward(x), expected = torchs->forward(again);
  EXPECT_TRUE(at::equal(y, expected));
  y.square().sum().backward();
  expected.square().sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), again.grad()));
}

}  // namespace
}  // namespace lockstep::nn
