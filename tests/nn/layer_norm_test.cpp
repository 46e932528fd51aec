// SPDX-License-Identifier: Apache-2.0
// On the CPU it is LibTorch's layer norm after an addition.
#include "lockstep/nn/layer_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::nn {
namespace {

TEST(LayerNorm, IsTorchsModule) {
  const auto x = at::randn({3, 5, 16});
  LayerNorm ours(torch::nn::LayerNormOptions({16}));
  torch::nn::LayerNorm torchs(torch::nn::LayerNormOptions({16}));
  EXPECT_TRUE(at::equal(ours->forward(x), torchs->forward(x)));
  EXPECT_EQ(ours->named_parameters().keys(), torchs->named_parameters().keys());
}

TEST(LayerNorm, AddsAResidual) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto x = at::randn({7, 24}).to(dtype).requires_grad_(),
               residual = at::randn({7, 24}).to(dtype).requires_grad_();
    LayerNorm norm(torch::nn::LayerNormOptions({24}));
    norm->to(dtype);
    const auto [sum, normed] = norm->forward(x, residual);
    EXPECT_TRUE(at::equal(sum, x + residual));
    EXPECT_TRUE(at::equal(normed, norm->torch::nn::LayerNormImpl::forward(x + residual)));
    (sum.sum() + (normed * normed).sum()).backward();
    EXPECT_TRUE(at::equal(x.grad(), residual.grad()));
  }
}

TEST(LayerNorm, WithoutAResidualTheSumIsTheInput) {
  const auto x = at::randn({2, 8});
  LayerNorm norm(torch::nn::LayerNormOptions({8}).elementwise_affine(false));
  const auto [sum, normed] = norm->forward(x, {});
  EXPECT_TRUE(sum.is_same(x));
  EXPECT_TRUE(at::equal(normed, norm->forward(x)));
}

}  // namespace
}  // namespace lockstep::nn
