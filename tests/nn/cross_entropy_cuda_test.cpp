// SPDX-License-Identifier: Apache-2.0
// The kernels beside LibTorch's loss in fp64 on the CPU, of the same logits. Needs one CUDA device.
//
// Tolerances: the loss is a sum in fp32 of at most 50,304 exponentials with a relative error of 2^-20 each, so 4e-6 of
// the loss's size at most, and 1e-6 where it is near 0. A gradient is rounded once to the logits' dtype.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/amp/autocast.h"
#include "lockstep/error.h"
#include "lockstep/nn/cross_entropy.h"

namespace lockstep::nn {
namespace {

using torch::nn::CrossEntropyLossOptions;

struct Case {
  at::Tensor logits, targets;  // on the CPU, values that the dtype holds
};

Case make_case(std::int64_t rows, std::int64_t classes, at::ScalarType dtype) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rows * 131 + classes));
  const auto logits = (at::randn({rows, classes}, generator) * 4).to(dtype);
  return {logits, at::randint(0, classes, {rows}, generator, at::TensorOptions(at::kLong))};
}

double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kHalf ? 0x1p-11 : dtype == at::kBFloat16 ? 0x1p-8 : 1e-5;
}

struct Result {
  at::Tensor loss, gradient;
};

Result on_cuda(const Case& c, const CrossEntropyLossOptions& options) {
  const auto logits = c.logits.to(at::kCUDA).requires_grad_();
  const auto loss = cross_entropy(logits, c.targets.to(at::kCUDA), options);
  loss.sum().backward();
  return {loss.detach().cpu().to(at::kDouble), logits.grad().cpu()};
}

Result in_fp64(const Case& c, const CrossEntropyLossOptions& options) {
  const auto logits = c.logits.to(at::kDouble).requires_grad_();
  const auto loss = torch::nn::CrossEntropyLoss(options)->forward(logits, c.targets);
  loss.sum().backward();
  return {loss.detach(), logits.grad()};
}

void expect_alike(const Case& c, const CrossEntropyLossOptions& options) {
  const auto ours = on_cuda(c, options);
  const auto exact = in_fp64(c, options);
  EXPECT_TRUE(at::allclose(ours.loss, exact.loss, 4e-6, 1e-6)) << ours.loss << exact.loss;
  EXPECT_EQ(ours.gradient.scalar_type(), c.logits.scalar_type());
  // fp16 flushes to steps of 2^-24 below 2^-14.
  EXPECT_TRUE(
      at::allclose(ours.gradient.to(at::kDouble), exact.gradient, tolerance_of(c.logits.scalar_type()), 0x1p-24))
      << c.logits.scalar_type() << c.logits.sizes();
}

/// Sizes with and without wide loads, shorter and longer than a block, and a language model's.
TEST(CrossEntropyCuda, EqualsTheExactLoss) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    for (const auto& [rows, classes] : {std::pair{1, 1}, {3, 7}, {5, 8}, {64, 1000}, {7, 4099}, {4, 50304}}) {
      expect_alike(make_case(rows, classes, dtype), {});
    }
  }
}

TEST(CrossEntropyCuda, TakesEveryOption) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    const auto c = make_case(33, 72, dtype);
    const auto ignored = c.targets[0].item<std::int64_t>();
    expect_alike(c, CrossEntropyLossOptions().reduction(torch::kSum));
    expect_alike(c, CrossEntropyLossOptions().reduction(torch::kNone));
    expect_alike(c, CrossEntropyLossOptions().ignore_index(ignored).label_smoothing(0.1));
    expect_alike(c, CrossEntropyLossOptions().label_smoothing(0.3).reduction(torch::kNone));
  }
}

TEST(CrossEntropyCuda, RowsApartAndMisalignedRows) {
  const auto c = make_case(9, 65, at::kHalf);
  const auto wide = at::zeros({9, 80}, at::TensorOptions(at::kCUDA).dtype(at::kHalf));
  wide.narrow(1, 1, 65).copy_(c.logits);
  const auto targets = c.targets.to(at::kCUDA);
  EXPECT_TRUE(at::equal(cross_entropy(wide.narrow(1, 1, 65), targets), cross_entropy(c.logits.to(at::kCUDA), targets)));
  const auto flat = at::zeros({8 * 16 + 1}, at::TensorOptions(at::kCUDA).dtype(at::kHalf));
  const auto shifted = flat.narrow(0, 1, 8 * 16).view({8, 16});  // contiguous, two bytes off a wide load
  EXPECT_NEAR(cross_entropy(shifted, at::zeros({8}, targets.options())).item<double>(), std::log(16.0), 1e-6);
}

TEST(CrossEntropyCuda, LargeAndRuledOutLogits) {
  auto c = make_case(8, 64, at::kHalf);
  c.logits.select(0, 0).mul_(3000);
  c.logits.select(1, 5).fill_(-std::numeric_limits<float>::infinity());
  c.targets.fill_(3);
  expect_alike(c, {});
}

TEST(CrossEntropyCuda, NothingAndNothingButIgnored) {
  const auto options = at::TensorOptions(at::kCUDA);
  const auto targets = at::full({4}, -100, options.dtype(at::kLong));
  const auto logits = at::randn({4, 16}, options.dtype(at::kHalf)).requires_grad_();
  EXPECT_TRUE(std::isnan(cross_entropy(logits, targets).item<double>()));
  const auto sum = cross_entropy(logits, targets, CrossEntropyLossOptions().reduction(torch::kSum));
  sum.backward();
  EXPECT_EQ(sum.item<double>(), 0);
  EXPECT_EQ(logits.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(
      cross_entropy(logits.narrow(0, 0, 0), targets.narrow(0, 0, 0), CrossEntropyLossOptions().reduction(torch::kNone))
          .numel(),
      0);
}

TEST(CrossEntropyCuda, ATargetOutOfRangeIsSeen) {
  const auto options = at::TensorOptions(at::kCUDA);
  const auto logits = at::randn({4, 16}, options.dtype(at::kHalf));
  EXPECT_TRUE(std::isnan(cross_entropy(logits, at::full({4}, 16, options.dtype(at::kLong))).item<double>()));
  EXPECT_TRUE(std::isnan(cross_entropy(logits, at::full({4}, -1, options.dtype(at::kLong))).item<double>()));
}

TEST(CrossEntropyCuda, ASecondDerivativeIsRefused) {
  const auto options = at::TensorOptions(at::kCUDA);
  const auto logits = at::randn({4, 16}, options.dtype(at::kFloat)).requires_grad_();
  const auto loss = cross_entropy(logits, at::zeros({4}, options.dtype(at::kLong)));
  EXPECT_THROW(loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true), InputError);
}

/// Autocast would widen the logits before LibTorch's loss: here nothing as large as they are is made.
TEST(CrossEntropyCuda, AutocastWidensNothing) {
  const amp::autocast guard(at::kCUDA, at::kHalf);
  const auto options = at::TensorOptions(at::kCUDA);
  const auto logits = at::randn({256, 4096}, options.dtype(at::kHalf)).requires_grad_();
  const auto targets = at::zeros({256}, options.dtype(at::kLong));
  const auto loss = cross_entropy(logits, targets);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  loss.backward();
  EXPECT_EQ(logits.grad().scalar_type(), at::kHalf);
}

TEST(CrossEntropyCuda, EveryRunGivesTheSameBits) {
  const auto c = make_case(64, 5000, at::kBFloat16);
  const auto first = on_cuda(c, {});
  for (int i = 0; i < 5; ++i) {
    const auto again = on_cuda(c, {});
    EXPECT_TRUE(at::equal(again.loss, first.loss));
    EXPECT_TRUE(at::equal(again.gradient, first.gradient));
  }
}

}  // namespace
}  // namespace lockstep::nn
