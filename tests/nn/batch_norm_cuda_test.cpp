// SPDX-License-Identifier: Apache-2.0
// The kernels beside LibTorch's batch norm in fp64 on the CPU, of the same 16-bit values. Needs one CUDA device.
#include "lockstep/nn/batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/error.h"

namespace lockstep::nn {
namespace {

struct ImageCase {
  at::Tensor x, residual, weight, bias, of_y;  // on the CPU
};

ImageCase image_case(std::vector<std::int64_t> sizes, at::ScalarType dtype, double shift = 2) {
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(sizes[1] * 131 + sizes[2]));
  const auto make = [&](double mean) {
    return (at::randn(sizes, generator) + mean).to(dtype).contiguous(at::MemoryFormat::ChannelsLast);
  };
  const auto channels = sizes[1];
  return {make(shift), make(0), at::randn({channels}, generator), at::randn({channels}, generator), make(0.3)};
}

/// y, the gradients of x, residual, weight and bias, running mean and variance, batches.
std::vector<at::Tensor> after_step(const ImageCase& c, bool adds, at::Device device, at::ScalarType dtype) {
  const auto leaf = [&](const at::Tensor& t) { return t.to(device, dtype).detach().requires_grad_(); };
  BatchNorm2d norm(c.x.size(1));
  norm->to(device, dtype == at::kDouble ? at::kDouble : at::kFloat);
  norm->num_batches_tracked = norm->num_batches_tracked.to(at::kLong);
  {
    const at::NoGradGuard no_grad;
    norm->weight.copy_(c.weight);
    norm->bias.copy_(c.bias);
  }
  const auto x = leaf(c.x), residual = leaf(c.residual);
  const auto y = norm->forward_relu(x, adds ? residual : at::Tensor());
  y.backward(c.of_y.to(device, dtype));
  return {y.detach(),
          x.grad(),
          adds ? residual.grad() : at::Tensor(),
          norm->weight.grad(),
          norm->bias.grad(),
          norm->running_mean,
          norm->running_var,
          norm->num_batches_tracked};
}

/// Where the ReLU's input is within rounding of 0, one side may cut a gradient that the other lets through: those few
/// places are left out of what is compared, and the sums they are part of are given room for it.
void expect_images_alike(const ImageCase& c, bool adds, const std::string& what) {
  const auto dtype = c.x.scalar_type();
  const auto ours = after_step(c, adds, at::Device(at::kCUDA, 0), dtype);
  const auto exact = after_step(c, adds, at::kCPU, at::kDouble);
  const double unit = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
  const auto apart = [&](std::size_t i) { return (ours[i].cpu().to(at::kDouble) - exact[i]).abs(); };
  EXPECT_LE((apart(0) - exact[0].abs() * unit).max().item<double>(), unit / 8) << what << ": y";
  for (std::size_t i = 1; i < 5; ++i) {
    if (exact[i].defined()) {
      const auto size = exact[i].pow(2).mean().sqrt().item<double>();
      EXPECT_LE(apart(i).pow(2).mean().sqrt().item<double>(), unit * size + 1e-6) << what << ": gradient " << i;
    }
  }
  EXPECT_LE(apart(5).max().item<double>(), 1e-5) << what << ": running mean";
  EXPECT_LE(apart(6).max().item<double>(), 1e-5) << what << ": running variance";
  EXPECT_EQ(ours[7].item<std::int64_t>(), 1);
}

/// One to 256 packs a row, chunks of channels beyond a block, fewer rows than a block works on at once, and many.
TEST(BatchNormCuda, EqualsTheExactNorm) {
  const std::vector<std::vector<std::int64_t>> shapes = {{2, 8, 1, 1},   {3, 24, 5, 7},   {4, 64, 28, 28},
                                                         {2, 256, 7, 7}, {2, 2048, 3, 3}, {2, 2056, 2, 2}};
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const auto& shape : shapes) {
      for (const bool adds : {false, true}) {
        expect_images_alike(image_case(shape, dtype), adds, c10::str(dtype, " ", at::IntArrayRef(shape), " ", adds));
      }
    }
  }
}

TEST(BatchNormCuda, ALargeMeanCancelsNothing) {
  expect_images_alike(image_case({8, 64, 16, 16}, at::kHalf, 500), true, "mean 500");
}

TEST(BatchNormCuda, WhatDoesNotFitIsTorchs) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kHalf);
  const auto x = at::randn({2, 16, 4, 4}, options);  // not channels-last
  BatchNorm2d ours(16);
  torch::nn::BatchNorm2d torchs(16);
  ours->to(at::kCUDA);
  torchs->to(at::kCUDA);
  EXPECT_TRUE(at::equal(ours->forward_relu(x), torchs->forward(x).relu()));
  ours->eval();
  torchs->eval();
  const auto last = x.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(at::equal(ours->forward_relu(last, last), (torchs->forward(last) + last).relu()));
}

TEST(BatchNormCuda, OverflowIsSeen) {
  auto c = image_case({2, 8, 4, 4}, at::kHalf);
  c.x[0][0][0][1] = std::numeric_limits<float>::infinity();
  const auto result = after_step(c, true, at::Device(at::kCUDA, 0), at::kHalf);
  EXPECT_TRUE(result[0].isnan().any().item<bool>());
  EXPECT_TRUE(result[3].isnan().any().item<bool>());
}

TEST(BatchNormCuda, ASecondDerivativeIsRefused) {
  const auto x = at::randn({2, 8, 4, 4}, at::TensorOptions(at::kCUDA).dtype(at::kHalf))
                     .contiguous(at::MemoryFormat::ChannelsLast)
                     .requires_grad_();
  BatchNorm2d norm(8);
  norm->to(at::kCUDA);
  EXPECT_THROW(norm->forward_relu(x).sum().backward({}, true, true), InputError);
}

TEST(BatchNormCuda, EveryRunGivesTheSameBits) {
  const auto c = image_case({16, 64, 28, 28}, at::kBFloat16);
  const auto first = after_step(c, true, at::Device(at::kCUDA, 0), at::kBFloat16);
  const auto again = after_step(c, true, at::Device(at::kCUDA, 0), at::kBFloat16);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(first[i], again[i])) << i;
  }
}

}  // namespace
}  // namespace lockstep::nn
