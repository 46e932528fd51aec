// SPDX-License-Identifier: Apache-2.0
// The kernels beside LibTorch's pooling in fp64 on the CPU, of the same 16-bit values. Needs one CUDA device.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/error.h"
#include "lockstep/nn/pooling.h"

namespace lockstep::nn {
namespace {

using torch::nn::MaxPool2dOptions;

at::Tensor images(std::vector<std::int64_t> sizes, at::ScalarType dtype, std::uint64_t seed) {
  // Quarters: windows with several largest values are common.
  const auto values = at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).mul_(4).round_().div_(4);
  return values.to(dtype).contiguous(at::MemoryFormat::ChannelsLast);
}

/// y and the gradient of x.
template <class Pool>
std::pair<at::Tensor, at::Tensor> pooled(Pool pool, const at::Tensor& values, at::Device device, at::ScalarType dtype) {
  const auto x = values.to(device, dtype).detach().requires_grad_();
  const auto y = pool->forward(x);
  const auto gradient = images(y.sizes().vec(), values.scalar_type(), 5);
  y.backward(gradient.to(device, dtype));
  return {y.detach().cpu().to(at::kDouble), x.grad().cpu().to(at::kDouble)};
}

void expect_pools_alike(const at::Tensor& x, const MaxPool2dOptions& options, const std::string& what) {
  const auto ours = pooled(MaxPool2d(options), x, at::Device(at::kCUDA, 0), x.scalar_type());
  const auto exact = pooled(torch::nn::MaxPool2d(options), x, at::kCPU, at::kDouble);
  EXPECT_TRUE(at::equal(ours.first, exact.first)) << what;
  const double unit = x.scalar_type() == at::kHalf ? 0x1p-11 : 0x1p-8;
  EXPECT_TRUE(at::allclose(ours.second, exact.second, unit, 1e-6)) << what;
}

/// Windows that overlap, touch and leave gaps; wider one way than the other; partly outside; one and several packs.
TEST(MaxPoolCuda, EqualsTheExactPool) {
  const std::vector<std::pair<MaxPool2dOptions, std::vector<std::int64_t>>> cases = {
      {MaxPool2dOptions(3).stride(2).padding(1), {2, 64, 13, 10}},
      {MaxPool2dOptions(2), {3, 8, 8, 8}},
      {MaxPool2dOptions({3, 2}).stride({1, 3}).padding({1, 0}), {2, 24, 6, 11}},
      {MaxPool2dOptions(5).stride(1).padding(2), {1, 16, 5, 5}},
      {MaxPool2dOptions({2, 3}).stride({3, 4}).padding(1), {1, 8, 7, 7}},
      {MaxPool2dOptions(15).stride(4).padding(7), {1, 8, 20, 17}}};
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      expect_pools_alike(images(cases[i].second, dtype, 11 + i), cases[i].first, c10::str(dtype, " case ", i));
    }
  }
}

TEST(MaxPoolCuda, WhatDoesNotFitIsTorchs) {
  const auto dtype = at::TensorOptions(at::kCUDA).dtype(at::kHalf);
  const auto plain = at::randn({2, 8, 8, 8}, dtype);  // not channels-last
  const auto last = plain.contiguous(at::MemoryFormat::ChannelsLast);
  const auto expect_torchs = [](const at::Tensor& x, const MaxPool2dOptions& options) {
    EXPECT_TRUE(at::equal(MaxPool2d(options)->forward(x), torch::nn::MaxPool2d(options)->forward(x)));
  };
  expect_torchs(plain, MaxPool2dOptions(3));
  expect_torchs(last, MaxPool2dOptions(3).dilation(2));
  expect_torchs(last, MaxPool2dOptions(3).ceil_mode(true));
  expect_torchs(last.to(at::kFloat), MaxPool2dOptions(3));
  EXPECT_THROW(MaxPool2d(MaxPool2dOptions(3).padding(2))->forward(last), c10::Error);
}

TEST(MaxPoolCuda, NaNAndInfinityComeThrough) {
  auto x = images({1, 8, 4, 4}, at::kHalf, 3);
  x[0][0].fill_(-std::numeric_limits<float>::infinity());
  x[0][1][2][2] = std::numeric_limits<float>::quiet_NaN();
  const auto y = MaxPool2d(MaxPool2dOptions(2))->forward(x.cuda()).cpu();
  EXPECT_TRUE(at::equal(y[0][0], at::full({2, 2}, -std::numeric_limits<float>::infinity(), at::kHalf)));
  EXPECT_TRUE(y[0][1][1][1].isnan().item<bool>());
  EXPECT_EQ(y[0][1].isnan().sum().item<std::int64_t>(), 1);
}

TEST(MaxPoolCuda, ASecondDerivativeIsRefused) {
  const auto x = images({1, 8, 4, 4}, at::kHalf, 3).cuda().requires_grad_();
  EXPECT_THROW(MaxPool2d(MaxPool2dOptions(2))->forward(x).sum().backward({}, true, true), InputError);
}

}  // namespace
}  // namespace lockstep::nn
