// SPDX-License-Identifier: Apache-2.0
// On the CPU, and in evaluation, it is LibTorch's batch norm, an addition and a ReLU.
#include "lockstep/nn/batch_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::nn {
namespace {

TEST(BatchNorm, IsTorchsModuleWithAReluAfterIt) {
  const auto x = at::randn({4, 6, 3, 3}), residual = at::randn({4, 6, 3, 3});
  BatchNorm2d ours(6);
  torch::nn::BatchNorm2d torchs(6);
  EXPECT_EQ(ours->named_parameters().keys(), torchs->named_parameters().keys());
  EXPECT_EQ(ours->named_buffers().keys(), torchs->named_buffers().keys());
  EXPECT_TRUE(at::equal(ours->forward_relu(x), torchs->forward(x).relu()));
  EXPECT_TRUE(at::equal(ours->forward_relu(x, residual), (torchs->forward(x) + residual).relu()));
  EXPECT_TRUE(at::equal(ours->running_var, torchs->running_var));
  EXPECT_EQ(ours->num_batches_tracked.item<std::int64_t>(), 2);
  ours->eval();
  torchs->eval();
  EXPECT_TRUE(at::equal(ours->forward_relu(x), torchs->forward(x).relu()));
  EXPECT_EQ(ours->num_batches_tracked.item<std::int64_t>(), 2);
}

TEST(BatchNorm, MixedPrecisionSeesABatchNorm) {
  const BatchNorm2d ours(6);
  EXPECT_NE(dynamic_cast<const torch::nn::BatchNorm2dImpl*>(ours.ptr().get()), nullptr);
}

}  // namespace
}  // namespace lockstep::nn
