// SPDX-License-Identifier: Apache-2.0
// The kernels beside LibTorch's layer norm in fp64 on the CPU, of the same 16-bit values. Needs one CUDA device.
//
// The sum is rounded once and the result once, each by half a unit; a gradient of weight or bias is a sum in fp32 that
// is rounded once. Absolute bounds are those units times the values' size, which is a few units here.
#include "lockstep/nn/layer_norm.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::nn {
namespace {

struct NormCase {
  at::Tensor x, residual, weight, bias, of_sum, of_normed;  // on the CPU; an undefined one takes no part
};

NormCase norm_case(std::int64_t rows, std::int64_t width, at::ScalarType dtype) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rows * 131 + width));
  const auto make = [&](std::vector<std::int64_t> sizes) { return at::randn(sizes, generator).to(dtype); };
  NormCase made;
  for (auto* tensor : {&made.x, &made.residual, &made.of_sum, &made.of_normed}) {
    *tensor = make({rows, width});
  }
  made.x.add_(3);  // a mean that is not near zero
  made.weight = make({width});
  made.bias = make({width});
  return made;
}

/// sum, normed, and the gradients of x, residual, weight and bias; undefined where there is none.
using Results = std::vector<at::Tensor>;

Results results_of(const NormCase& c, at::Device device, at::ScalarType dtype) {
  const auto there = [&](const at::Tensor& t) { return t.defined() ? t.to(device, dtype) : t; };
  const auto leaf = [&](const at::Tensor& t) { return t.defined() ? there(t).detach().requires_grad_() : t; };
  LayerNorm norm(torch::nn::LayerNormOptions({c.x.size(1)}));
  norm->to(device, dtype);
  {
    const at::NoGradGuard no_grad;
    norm->weight.copy_(c.weight);
    norm->bias.copy_(c.bias);
  }
  const auto x = leaf(c.x), residual = leaf(c.residual);
  const auto [sum, normed] = norm->forward(x, residual);
  auto total = at::zeros({}, normed.options().dtype(at::kDouble));
  if (c.of_normed.defined()) {
    total = total + (normed.to(at::kDouble) * there(c.of_normed)).sum();
  }
  if (c.of_sum.defined()) {
    total = total + (sum.to(at::kDouble) * there(c.of_sum)).sum();
  }
  total.backward();
  return {sum.detach(),        normed.detach(),  x.grad(), residual.defined() ? residual.grad() : at::Tensor(),
          norm->weight.grad(), norm->bias.grad()};
}

/// Both sides normalise the same values: the reference is given the rounded sum.
NormCase with_rounded_sum(NormCase c) {
  if (c.residual.defined()) {
    c.x = c.x + c.residual;
    c.residual = at::zeros_like(c.residual);
  }
  return c;
}

void expect_norms_alike(const NormCase& c, const std::string& what) {
  const auto dtype = c.x.scalar_type();
  const auto ours = results_of(c, at::Device(at::kCUDA, 0), dtype);
  const auto exact = results_of(with_rounded_sum(c), at::kCPU, at::kDouble);
  const double unit = dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].defined(), exact[i].defined()) << what << ", result " << i;
    if (ours[i].defined()) {
      EXPECT_EQ(ours[i].scalar_type(), dtype);
      const auto apart = (ours[i].cpu().to(at::kDouble) - exact[i]).abs() - exact[i].abs() * 1.01 * unit;
      EXPECT_LE(apart.max().item<double>(), unit / 16) << what << ", result " << i;
    }
  }
}

/// One to eight packs a lane, the last one full and not; fewer rows than a block has warps, and many.
TEST(LayerNormCuda, EqualsTheExactNorm) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const auto& [rows, width] :
         {std::pair{1, 8}, {5, 64}, {33, 256}, {70, 768}, {9, 1000}, {17, 1024}, {6, 1600}, {3, 2048}, {9001, 40}}) {
      expect_norms_alike(norm_case(rows, width, dtype), c10::str(dtype, " ", rows, " x ", width));
    }
  }
}

TEST(LayerNormCuda, AnyPartMayBeMissing) {
  const auto whole = norm_case(37, 768, at::kHalf);
  auto c = whole;
  c.residual = c.of_sum = at::Tensor();  // a gradient of the sum would be x's own, and added to the norm's by autograd
  expect_norms_alike(c, "no residual");
  c = whole;
  c.of_sum = at::Tensor();
  expect_norms_alike(c, "a residual, the sum not used");
}

TEST(LayerNormCuda, ALossOfTheSumAloneLeavesTheNormAlone) {
  const at::Device cuda(at::kCUDA, 0);
  const auto x = at::randn({4, 64}, at::TensorOptions(cuda).dtype(at::kHalf)).requires_grad_();
  LayerNorm norm(torch::nn::LayerNormOptions({64}));
  norm->to(cuda, at::kHalf);
  norm->forward(x, x.detach()).sum.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x.grad())));
  EXPECT_FALSE(norm->weight.grad().defined());
}

/// Differences between large values and their mean keep their digits.
TEST(LayerNormCuda, ALargeMeanCancelsNothing) {
  auto c = norm_case(16, 512, at::kHalf);
  c.x.mul_(0.5).add_(1000);
  c.residual = at::Tensor();
  c.of_sum = at::Tensor();
  expect_norms_alike(c, "mean 1000");
}

TEST(LayerNormCuda, WhatDoesNotFitIsTorchs) {
  const at::Device cuda(at::kCUDA, 0);
  for (const auto dtype : {at::kHalf, at::kFloat}) {
    for (const std::int64_t width : {12, 2056}) {
      const auto x = at::randn({4, width}, at::TensorOptions(cuda).dtype(dtype)).requires_grad_();
      LayerNorm norm(torch::nn::LayerNormOptions({width}));
      norm->to(cuda, dtype);
      EXPECT_TRUE(at::equal(norm->forward(x), norm->torch::nn::LayerNormImpl::forward(x)));
    }
  }
}

TEST(LayerNormCuda, ASecondDerivativeIsRefused) {
  const at::Device cuda(at::kCUDA, 0);
  const auto x = at::randn({4, 64}, at::TensorOptions(cuda).dtype(at::kHalf)).requires_grad_();
  LayerNorm norm(torch::nn::LayerNormOptions({64}));
  norm->to(cuda, at::kHalf);
  EXPECT_THROW(norm->forward(x).sum().backward({}, true, true), InputError);
}

TEST(LayerNormCuda, EveryRunGivesTheSameBits) {
  const auto c = norm_case(5000, 768, at::kBFloat16);
  const auto first = results_of(c, at::Device(at::kCUDA, 0), at::kBFloat16);
  const auto again = results_of(c, at::Device(at::kCUDA, 0), at::kBFloat16);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(first[i], again[i])) << i;
  }
}

}  // namespace
}  // namespace lockstep::nn
