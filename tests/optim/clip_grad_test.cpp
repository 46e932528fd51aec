// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/clip_grad.h"

#include <cmath>

#include "lockstep/error.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;

const double kInf = std::numeric_limits<double>::infinity();

Tensors with_gradients(const Tensors& gradients) {
  Tensors parameters;
  for (const auto& gradient : gradients) {
    parameters.push_back(at::empty_like(gradient).requires_grad_());
    parameters.back().mutable_grad() = gradient;
  }
  return parameters;
}

double norm_by_hand(const Tensors& gradients, double type) {
  double power = 0;
  for (const auto& gradient : gradients) {
    const auto values = gradient.to(at::kDouble).abs().contiguous();
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      const double x = values.const_data_ptr<double>()[i];
      power = type == kInf ? std::max(power, x) : power + std::pow(x, type);
    }
  }
  return type == 2 ? std::sqrt(power) : power;
}

TEST(ClipGrad, norm_and_scaling_equal_a_plain_loop) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    for (const double type : {1.0, 2.0, kInf}) {
      const auto gradients = make_gradients(make_parameters(dtype, 1), 0, 3);
      const auto before = clone(gradients);
      const double norm = norm_by_hand(gradients, type);
      const auto returned = clip_grad_norm_(with_gradients(gradients), 0.5, {.norm_type = type});
      EXPECT_NEAR(returned.item<double>() / norm, 1, 1e-6) << dtype << " " << type;
      Tensors expected;
      for (const auto& gradient : before) {
        expected.push_back((gradient.to(at::kDouble) * (0.5 / (norm + 1e-6))).to(dtype).to(at::kDouble));
      }
      // The factor is fp32; a 16-bit result may round to its neighbour.
      const double unit = dtype == at::kBFloat16 ? 1.0 / 256 : dtype == at::kHalf ? 1.0 / 2048 : 3e-7;
      expect_close(gradients, expected, unit, c10::toString(dtype));
    }
  }
}

TEST(ClipGrad, small_gradients_are_left_bit_for_bit) {
  const auto gradients = make_gradients(make_parameters(at::kFloat, 1), 0, 1e-3);
  const auto before = clone(gradients);
  clip_grad_norm_(with_gradients(gradients), 100);
  expect_same_bits(gradients, before, "gradients");
}

TEST(ClipGrad, J6_squares_do_not_overflow) {
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

TEST(ClipGrad, J6_mixed_dtypes_count_together_and_nothing_is_zero) {
  const Tensors mixed{at::full({1}, 2, at::kHalf), at::full({1}, 3, at::kFloat), at::full({1}, 6, at::kBFloat16)};
  EXPECT_FLOAT_EQ(clip_grad_norm_(with_gradients(mixed), 100).item<float>(), 7);
  EXPECT_EQ(clip_grad_norm_({}, 1).item<float>(), 0);
  EXPECT_EQ(clip_grad_norm_({at::zeros({3}).requires_grad_()}, 1).item<float>(), 0);
}

TEST(ClipGrad, J6_a_nan_or_inf_leaves_gradients_alone_and_is_reported) {
  for (const double bad : {std::nan(""), kInf, -kInf}) {
    for (const double type : {1.0, 2.0, kInf}) {
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

TEST(ClipGrad, J5_scaled_gradients_are_judged_by_their_true_norm) {
  const Tensors gradients{at::full({100}, 65536, at::kFloat)};
  const auto parameters = with_gradients(gradients);
  const auto norm = clip_grad_norm_(parameters, 1, {.grad_scale = one(65536)});
  EXPECT_FLOAT_EQ(norm.item<float>(), 10);
  EXPECT_NEAR((gradients[0] / 65536).norm().item<double>(), 1, 1e-6);
}

TEST(ClipGrad, J2_an_empty_tensor_may_stand_anywhere) {
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

TEST(ClipGrad, any_memory_order_and_a_tensor_listed_twice) {
  auto parameter = at::zeros({4, 6}).requires_grad_();
  parameter.mutable_grad() = at::ones({6, 8}).t().slice(0, 0, 8, 2);
  ASSERT_FALSE(parameter.grad().is_contiguous());
  EXPECT_FLOAT_EQ(clip_grad_norm_({parameter, parameter}, 1).item<float>(), std::sqrt(24.0f));
  EXPECT_NEAR(parameter.grad().norm().item<double>(), 1, 1e-6);
}

TEST(ClipGrad, sparse_gradients_count_their_repeated_indices_together) {
  auto parameter = at::zeros({4, 1}).requires_grad_();
  const auto indices = at::tensor({0, 0, 2}, at::kLong).unsqueeze(0);
  parameter.mutable_grad() = at::sparse_coo_tensor(indices, at::tensor({1.0f, 2.0f, 4.0f}).unsqueeze(1), {4, 1});
  EXPECT_FLOAT_EQ(clip_grad_norm_({parameter}, 1).item<float>(), 5);
  EXPECT_NEAR(parameter.grad().to_dense().norm().item<double>(), 1, 1e-6);
}

TEST(ClipGrad, shards_make_one_norm) {
  // Two shards of the gradient (3, 4): each reduces with what the other has.
  const auto run = [](float mine, double others) {
    const Tensors gradients{at::full({1}, mine)};
    return clip_grad_norm_(with_gradients(gradients), 1, {.reduce = [&](at::Tensor& power) { power.add_(others); }});
  };
  EXPECT_FLOAT_EQ(run(3, 16).item<float>(), 5);
  EXPECT_FLOAT_EQ(run(4, 9).item<float>(), 5);
}

TEST(ClipGrad, sums_do_not_depend_on_threads) {
  const auto gradients = make_gradients({at::zeros({300007})}, 0);
  const auto before = at::get_num_threads();
  at::set_num_threads(1);
  const auto alone = clip_factor(with_gradients(gradients), 1).norm;
  at::set_num_threads(3);
  EXPECT_TRUE(same_bits(alone, clip_factor(with_gradients(gradients), 1).norm));
  at::set_num_threads(before);
}

TEST(ClipGrad, values_are_clamped) {
  const Tensors gradients{at::tensor({-3.0f, 0.5f, 2.0f, std::nanf("")})};
  clip_grad_value_(with_gradients(gradients), 1);
  EXPECT_EQ(gradients[0][0].item<float>(), -1);
  EXPECT_EQ(gradients[0][1].item<float>(), 0.5f);
  EXPECT_EQ(gradients[0][2].item<float>(), 1);
  EXPECT_TRUE(std::isnan(gradients[0][3].item<float>()));
}

TEST(ClipGrad, bad_arguments_are_refused) {
  EXPECT_THROW(clip_grad_norm_({}, 1, {.norm_type = 3}), InputError);
  EXPECT_THROW(clip_grad_norm_({}, -1), InputError);
  EXPECT_THROW(clip_grad_norm_({}, 1, {.grad_scale = at::ones({1}, at::kDouble)}), InputError);
  EXPECT_THROW(clip_grad_value_({}, -1), InputError);
}

}  // namespace
}  // namespace lockstep::optim
