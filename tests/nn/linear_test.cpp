// SPDX-License-Identifier: Apache-2.0
// On the CPU it is what Python's nn.Linear computes: at::linear, for any number of dimensions.
#include "lockstep/nn/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::nn {
namespace {

TEST(Linear, IsTorchsModule) {
  Linear ours(24, 8), bare(torch::nn::LinearOptions(24, 8).bias(false));
  torch::nn::Linear torchs(24, 8);
  EXPECT_EQ(ours->named_parameters().keys(), torchs->named_parameters().keys());
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{24}, {5, 24}, {2, 3, 24}, {2, 1, 3, 24}, {0, 24}}) {
    const auto x = at::randn(shape);
    const auto y = ours->forward(x);
    EXPECT_TRUE(at::allclose(y, ours->torch::nn::LinearImpl::forward(x), 1e-5, 1e-6));
    EXPECT_EQ(y.sizes(), ours->torch::nn::LinearImpl::forward(x).sizes());
    EXPECT_TRUE(at::allclose(bare->forward(x), at::matmul(x, bare->weight.t()), 1e-5, 1e-6));
  }
}

TEST(Linear, IsFollowedByAGelu) {
  Linear linear(16, 32);
  const auto x = at::randn({3, 7, 16}).requires_grad_();
  linear->forward_gelu(x).square().sum().backward();
  const auto gradients = std::vector<at::Tensor>{x.grad(), linear->weight.grad(), linear->bias.grad()};
  x.mutable_grad() = at::Tensor();
  linear->zero_grad();
  at::gelu(at::linear(x, linear->weight, linear->bias), "tanh").square().sum().backward();
  EXPECT_TRUE(at::equal(gradients[0], x.grad()));
  EXPECT_TRUE(at::equal(gradients[1], linear->weight.grad()));
  EXPECT_TRUE(at::equal(gradients[2], linear->bias.grad()));
}

}  // namespace
}  // namespace lockstep::nn
