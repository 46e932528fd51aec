// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/clip_grad.h"

#include <cmath>

#include "lockstep/error.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;

const double kInf = std::numeric_limits<double>::infinity();

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
