// SPDX-License-Identifier: Apache-2.0
// What went wrong with clipping in other systems. The number of a trial is its name.
#include <cmath>

#include "lockstep/error.h"
#include "lockstep/optim/clip_grad.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;

TEST(Trials, J6_squares_do_not_overflow) {
  const Tensors fp16{at::full({1}, 300, at::kHalf)};
  const auto norm = clip_grad_norm_(with_gradients(fp16), 1);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_EQ(norm.item<float>(), 300.0f);
  EXPECT_EQ(fp16[0].item<float>(), 1.0f);
  const Tensors large{at::full({2}, 3e38, at::kFloat)};
  EXPECT_TRUE(std::isinf(clip_grad_norm_(with_gradients(large), 1).item<float>()));
  const Tensors squares{at::full({4}, 1e30, at::kFloat)};
  EXPECT_FLOAT_EQ(clip_grad_norm_(with_gradients(squares), 1).item<float>(), 2e30f);
  EXPECT_FLOAT_EQ(squares[0][0].item<float>(), 0.5f);
}

TEST(Trials, J6_mixed_dtypes_count_together_and_nothing_is_zero) {
  const Tensors mixed{at::full({1}, 2, at::kHalf), at::full({1}, 3, at::kFloat), at::full({1}, 6, at::kBFloat16)};
  EXPECT_FLOAT_EQ(clip_grad_norm_(with_gradients(mixed), 100).item<float>(), 7);
  EXPECT_EQ(clip_grad_norm_({}, 1).item<float>(), 0);
  EXPECT_EQ(clip_grad_norm_({at::zeros({3}).requires_grad_()}, 1).item<float>(), 0);
}

TEST(Trials, J6_a_nan_or_inf_leaves_gradients_alone_and_is_reported) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {std::nan(""), inf, -inf}) {
    for (const double type : {1.0, 2.0, inf}) {
      for (const std::int64_t place : {0, 17, 20010}) {
        const auto gradients = make_gradients(make_parameters(at::kFloat, 1), 0);
        gradients.back()[place] = bad;
        const auto before = clone(gradients);
        const auto parameters = with_gradients(gradients);
        EXPECT_FALSE(std::isfinite(clip_grad_norm_(parameters, 1, {.norm_type = type}).item<float>()));
        const auto result = clip_factor(parameters, 1, {.norm_type = type});
        EXPECT_EQ(result.found_inf.item<float>(), 1);
        EXPECT_EQ(result.factor.item<float>(), 1);
        EXPECT_THROW(clip_grad_norm_(parameters, 1, {.norm_type = type, .error_if_nonfinite = true}), Error);
        expect_same_bits(gradients, before, "gradients");
      }
    }
  }
}

TEST(Trials, J5_scaled_gradients_are_judged_by_their_true_norm) {
  const Tensors gradients{at::full({100}, 65536, at::kFloat)};
  const auto parameters = with_gradients(gradients);
  const auto norm = clip_grad_norm_(parameters, 1, {.grad_scale = one(65536)});
  EXPECT_FLOAT_EQ(norm.item<float>(), 10);
  EXPECT_NEAR((gradients[0] / 65536).norm().item<double>(), 1, 1e-6);
}

TEST(Trials, J2_a_norm_takes_an_empty_tensor_anywhere) {
  for (int count = 1; count <= 130; count += 43) {
    for (int place = 0; place <= count; ++place) {
      Tensors gradients(static_cast<std::size_t>(count), at::Tensor());
      for (auto& gradient : gradients) {
        gradient = at::full({3}, 2.0);
      }
      gradients.insert(gradients.begin() + place, at::empty({0}));
      const auto norm = clip_grad_norm_(with_gradients(gradients), 1, {.norm_type = 1});
      ASSERT_EQ(norm.item<float>(), 6.0f * static_cast<float>(count));
    }
  }
}

}  // namespace
}  // namespace lockstep::optim
