// SPDX-License-Identifier: Apache-2.0
// On the CPU the loss is LibTorch's own of the widened logits: dtypes and options are what can go wrong here.
#include "lockstep/nn/cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace lockstep::nn {
namespace {

using torch::nn::CrossEntropyLossOptions;

struct Case {
  at::Tensor logits, targets;
};

Case make_case(std::int64_t rows, std::int64_t classes, at::ScalarType dtype = at::kFloat) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const auto logits = (at::randn({rows, classes}, generator) * 3).to(dtype);
  return {logits.requires_grad_(), at::randint(0, classes, {rows}, generator, at::TensorOptions(at::kLong))};
}

std::vector<CrossEntropyLossOptions> many_options() {
  std::vector<CrossEntropyLossOptions> all{CrossEntropyLossOptions()};
  all.push_back(CrossEntropyLossOptions().reduction(torch::kSum).ignore_index(2));
  all.push_back(CrossEntropyLossOptions().reduction(torch::kNone).label_smoothing(0.1));
  all.push_back(CrossEntropyLossOptions().weight(at::arange(1, 6).to(at::kFloat)).ignore_index(0));
  return all;
}

at::Tensor gradient_of(const at::Tensor& loss, const at::Tensor& logits) {
  logits.mutable_grad() = at::Tensor();
  loss.sum().backward();
  return logits.grad().clone();
}

TEST(CrossEntropy, EqualsTorchsModuleInFp32) {
  for (const auto& options : many_options()) {
    const auto [logits, targets] = make_case(9, 5);
    const auto ours = CrossEntropyLoss(options)->forward(logits, targets);
    const auto gradient = gradient_of(ours, logits);
    const auto torchs = torch::nn::CrossEntropyLoss(options)->forward(logits, targets);
    EXPECT_TRUE(at::equal(ours, torchs));
    EXPECT_TRUE(at::equal(gradient, gradient_of(torchs, logits)));
  }
}

TEST(CrossEntropy, LowPrecisionLogitsHaveAnFp32Loss) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const auto& options : many_options()) {
      const auto [logits, targets] = make_case(9, 5, dtype);
      const auto wide = logits.detach().to(at::kFloat).requires_grad_();
      const auto ours = cross_entropy(logits, targets, options);
      const auto torchs = torch::nn::CrossEntropyLoss(options)->forward(wide, targets);
      EXPECT_EQ(ours.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(ours, torchs));
      EXPECT_TRUE(at::equal(gradient_of(ours, logits), gradient_of(torchs, wide).to(dtype)));
    }
  }
}

TEST(CrossEntropy, AHalfModelsClassWeightsAreTaken) {
  const auto [logits, targets] = make_case(9, 5, at::kBFloat16);
  CrossEntropyLoss module(CrossEntropyLossOptions().weight(at::ones({5}) * 0.5));
  module->to(at::kBFloat16);
  const auto loss = module->forward(logits, targets);
  EXPECT_TRUE(at::allclose(loss, cross_entropy(logits, targets)));
}

TEST(CrossEntropy, TakesProbabilitiesAndImages) {
  const auto [logits, targets] = make_case(6, 4, at::kBFloat16);
  const auto probabilities = at::one_hot(targets, 4).to(at::kBFloat16);
  EXPECT_TRUE(at::allclose(cross_entropy(logits, probabilities), cross_entropy(logits, targets)));
  const auto image = logits.detach().view({1, 6, 2, 2});
  const auto places = at::zeros({1, 2, 2}, at::TensorOptions(at::kLong));
  EXPECT_EQ(cross_entropy(image, places).scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace lockstep::nn
