// SPDX-License-Identifier: Apache-2.0
// The kernels beside the same layer in fp64 on the CPU, of the same 16-bit values. Needs one CUDA device.
#include "lockstep/nn/linear.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::nn {
namespace {

struct LinearCase {
  at::Tensor x, weight, bias, of_y;  // on the CPU
  bool gelu;
};

LinearCase linear_case(std::int64_t rows, std::int64_t in, std::int64_t out, at::ScalarType dtype, bool gelu) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rows + 7 * in + 31 * out));
  const auto make = [&](std::vector<std::int64_t> sizes) { return at::randn(sizes, generator).to(dtype); };
  return {make({rows, in}), (make({out, in}) / std::sqrt(static_cast<double>(in))).to(dtype), make({out}),
          make({rows, out}), gelu};
}

/// y and the gradients of x, weight and bias.
std::vector<at::Tensor> layer_results(const LinearCase& c, at::Device device, at::ScalarType dtype) {
  Linear linear(c.weight.size(1), c.weight.size(0));
  linear->to(device, dtype);
  {
    const at::NoGradGuard no_grad;
    linear->weight.copy_(c.weight);
    linear->bias.copy_(c.bias);
  }
  const auto x = c.x.to(device, dtype).detach().requires_grad_();
  const auto y = c.gelu ? linear->forward_gelu(x) : linear->forward(x);
  y.backward(c.of_y.to(device, dtype));
  return {y.detach(), x.grad(), linear->weight.grad(), linear->bias.grad()};
}

/// A sum of n rounded products is off by no more than the roundings of its terms, of the GELU's input and of the
/// result: bounds are units of the dtype times the largest value there is.
void expect_layers_alike(const LinearCase& c, const std::string& what) {
  const auto dtype = c.x.scalar_type();
  const auto ours = layer_results(c, at::Device(at::kCUDA, 0), dtype);
  const auto exact = layer_results(c, at::kCPU, at::kDouble);
  const double unit = dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), dtype);
    const double apart = (ours[i].cpu().to(at::kDouble) - exact[i]).abs().max().item<double>();
    EXPECT_LE(apart, 4 * unit * exact[i].abs().max().item<double>()) << what << ", result " << i;
  }
}

/// One block of rows and many; columns that fill a block's 256 and that do not.
TEST(LinearCuda, EqualsTheExactLayer) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const bool gelu : {false, true}) {
      for (const auto& [rows, in, out] : {std::tuple{1, 8, 8},
                                          {16, 128, 512},
                                          {256, 64, 264},
                                          {257, 64, 768},
                                          {1000, 40, 40},
                                          {9001, 32, 256},
                                          {5000, 16, 2304}}) {
        expect_layers_alike(linear_case(rows, in, out, dtype, gelu),
                            c10::str(dtype, " ", rows, " x ", in, " -> ", out, gelu ? " gelu" : ""));
      }
    }
  }
}

/// The bias's gradient is rounded once, from sums in fp32, where a sum in 16 bits would be far off.
TEST(LinearCuda, TheBiasGradientIsRoundedOnce) {
  const auto c = linear_case(20000, 8, 64, at::kHalf, false);
  const auto ours = layer_results(c, at::Device(at::kCUDA, 0), at::kHalf)[3].cpu().to(at::kDouble);
  const auto exact = c.of_y.to(at::kDouble).sum(0);
  EXPECT_LE(((ours - exact).abs() - exact.abs() * 0x1p-11).max().item<double>(), 1e-3);
}

/// [batch, length, width], a gradient that is not contiguous, and one that is not aligned.
TEST(LinearCuda, TakesAnyShapeAndGradient) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kHalf);
  Linear linear(16, 24);
  linear->to(at::kCUDA, at::kHalf);
  const auto x = at::randn({3, 5, 16}, options).requires_grad_();
  const auto y = linear->forward(x);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 5, 24}));
  for (const auto& gradient : {at::randn({5, 3, 24}, options).transpose(0, 1),
                               at::randn({3 * 5 * 24 + 1}, options).slice(0, 1).view({3, 5, 24})}) {
    linear->zero_grad();
    x.mutable_grad() = at::Tensor();
    linear->forward(x).backward(gradient);
    EXPECT_TRUE(at::allclose(linear->bias.grad(), gradient.sum(at::IntArrayRef{0, 1}, false, at::kFloat).to(at::kHalf),
                             1e-3, 1e-2));
    EXPECT_TRUE(at::allclose(x.grad(), at::matmul(gradient, linear->weight), 1e-2, 1e-2));
  }
}

TEST(LinearCuda, WhatDoesNotFitIsAtLinear) {
  for (const auto& [dtype, out] : {std::pair{at::kHalf, 12}, {at::kFloat, 16}}) {
    Linear linear(16, out);
    linear->to(at::kCUDA, dtype);
    const auto x = at::randn({2, 3, 16}, at::TensorOptions(at::kCUDA).dtype(dtype));
    EXPECT_TRUE(at::equal(linear->forward(x), at::linear(x, linear->weight, linear->bias)));
  }
}

TEST(LinearCuda, AnInputThatNeedsNoGradientGetsNone) {
  Linear linear(16, 16);
  linear->to(at::kCUDA, at::kHalf);
  linear->forward(at::randn({4, 16}, at::TensorOptions(at::kCUDA).dtype(at::kHalf))).sum().backward();
  EXPECT_TRUE(at::equal(linear->bias.grad().cpu(), at::full({16}, 4, at::kHalf)));
}

TEST(LinearCuda, ASecondDerivativeIsRefused) {
  Linear linear(16, 16);
  linear->to(at::kCUDA, at::kHalf);
  const auto x = at::randn({4, 16}, at::TensorOptions(at::kCUDA).dtype(at::kHalf)).requires_grad_();
  EXPECT_THROW(linear->forward(x).sum().backward({}, true, true), InputError);
}

TEST(LinearCuda, EveryRunGivesTheSameBits) {
  const auto c = linear_case(5000, 32, 768, at::kBFloat16, true);
  const at::Device cuda(at::kCUDA, 0);
  EXPECT_TRUE(at::equal(layer_results(c, cuda, at::kBFloat16)[3], layer_results(c, cuda, at::kBFloat16)[3]));
}

}  // namespace
}  // namespace lockstep::nn
