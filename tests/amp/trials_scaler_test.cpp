// SPDX-License-Identifier: Apache-2.0
// What went wrong in other systems. The number of a trial is its name.
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/schedulers/step_lr.h>

#include <cmath>

#include "amp/amp_testing.h"
#include "lockstep/amp/grad_scaler.h"

namespace lockstep::amp {
namespace {

using at::Tensor;
using testing::error_of;
using testing::kInf;
using testing::kNan;
using testing::mentions;
using testing::one_parameter;
using torch::optim::SGD;

void backward(GradScaler& scaler, const Tensor& p, float gradient) {
  scaler.scale((p * gradient).sum()).backward();
}

// D4: the scale changes, or gradients are unscaled, in the middle of a window.
TEST(Trials, D4_update_in_the_middle_of_a_window_is_an_error) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 1});
  const auto p = one_parameter(0);
  SGD optimizer({p}, 1.0);
  backward(scaler, p, 1);
  EXPECT_TRUE(mentions(error_of([&] { scaler.update(); }), "no inf checks were recorded prior to update"));
  backward(scaler, p, 1);
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(p.item<float>(), -2);
}

TEST(Trials, D4_unscale_in_the_middle_of_a_window_is_an_error) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 1});
  const auto p = one_parameter(0), other = one_parameter(0);
  SGD optimizer({p}, 1.0), second({other}, 1.0);
  backward(scaler, p, 1);
  scaler.unscale_(optimizer);
  backward(scaler, p, 1);
  EXPECT_TRUE(mentions(error_of([&] { scaler.step(optimizer); }), "a mixture of true and scaled gradients"));
  EXPECT_EQ(p.item<float>(), 0);
  scaler.update();
  optimizer.zero_grad();
  // A later loss that leaves the unscaled gradients alone is fine, and so is clipping.
  backward(scaler, p, 1);
  scaler.unscale_(optimizer);
  p.grad().mul_(0.5);
  backward(scaler, other, 1);
  EXPECT_NO_THROW(scaler.step(optimizer));
  EXPECT_NO_THROW(scaler.step(second));
  EXPECT_EQ(p.item<float>(), -0.5);
  EXPECT_EQ(other.item<float>(), -1);
}

// F5: calls in the wrong order.
TEST(Trials, F5_call_order) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 1});
  const auto p = one_parameter();
  SGD optimizer({p}, 0.0);
  EXPECT_TRUE(mentions(error_of([&] { scaler.unscale_(optimizer); }), "no loss has been scaled yet"));
  EXPECT_TRUE(mentions(error_of([&] { scaler.step(optimizer); }), "no loss has been scaled yet"));
  EXPECT_TRUE(mentions(error_of([&] { scaler.update(); }), "no loss has been scaled yet"));
  scaler.scale(at::ones({}));
  EXPECT_TRUE(mentions(error_of([&] { scaler.step(optimizer); }), "no inf checks were recorded for this optimizer"));
  backward(scaler, p, 1);
  scaler.unscale_(optimizer);
  EXPECT_TRUE(mentions(error_of([&] { scaler.unscale_(optimizer); }), "has already been called on this optimizer"));
  scaler.step(optimizer);
  EXPECT_TRUE(mentions(error_of([&] { scaler.step(optimizer); }), "step() has already been called"));
  EXPECT_TRUE(mentions(error_of([&] { scaler.unscale_(optimizer); }), "is being called after step()"));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8);
  EXPECT_TRUE(mentions(error_of([&] { scaler.update(); }), "no inf checks were recorded prior to update"));
  EXPECT_EQ(scaler.get_scale(), 8) << "a second update must not count as a clean step";
}

TEST(Trials, F5_unscale_then_no_step_then_update_is_legal) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 1});
  const auto p = one_parameter();
  SGD optimizer({p}, 1.0);
  backward(scaler, p, 1);
  scaler.unscale_(optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8);
  optimizer.zero_grad();
  backward(scaler, p, 1);
  scaler.unscale_(optimizer);
  scaler.step(optimizer);
  EXPECT_EQ(p.item<float>(), 0);
}

// F6: nobody can tell that a step was skipped, so the schedule goes on.
TEST(Trials, F6_the_outcome_says_skipped) {
  GradScaler scaler({.init_scale = 0x1p24});
  const auto w = at::ones({1}).requires_grad_();
  SGD optimizer({w}, 1.0);
  torch::optim::StepLR schedule(optimizer, 1, 0.1);
  schedule.step();  // LibTorch's first call keeps the rate
  int skipped = 0, taken = 0;
  while (taken == 0) {
    optimizer.zero_grad();
    const auto fp16 = w.to(at::kHalf);
    scaler.scale((fp16 * 1).sum()).backward();
    if (scaler.step(optimizer).skipped()) {
      ++skipped;
    } else {
      schedule.step();
      ++taken;
    }
    scaler.update();
  }
  EXPECT_EQ(skipped, 9);  // 2^24 down to 2^15, the first scale that fp16 holds
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
  EXPECT_EQ(w.item<float>(), 0);
}

// F7: the scale is updated before it is used to unscale.
TEST(Trials, F7_a_growth_step_uses_the_scale_it_was_scaled_with) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 1});
  const auto p = one_parameter(0);
  SGD stock({p}, 1.0);
  testing::DeviceSgd device({p}, 1.0);
  for (int i = 1; i <= 4; ++i) {
    p.mutable_grad().reset();
    backward(scaler, p, 1);
    i % 2 == 0 ? scaler.step(device) : scaler.step(stock);
    scaler.update();
    EXPECT_EQ(p.item<float>(), -i);
  }
}

// F8: permanent NaN drives the scale to denormals, then to 0 and to a division by zero.
TEST(Trials, F8_permanent_nan_ends_in_an_error_that_says_so) {
  GradScaler scaler;
  const auto p = one_parameter();
  SGD optimizer({p}, 1.0);
  int steps = 0;
  std::string text;
  try {
    for (; steps < 2000; ++steps) {
      optimizer.zero_grad();
      backward(scaler, p, kNan);
      scaler.step(optimizer);
      scaler.update();
    }
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_EQ(steps, 63);
  EXPECT_TRUE(mentions(text, "64 in a row")) << text;
  EXPECT_TRUE(mentions(text, "NaN in the data, the loss or the model is likelier than overflow")) << text;
  EXPECT_EQ(scaler.skips_in_a_row(), 0) << "a caller that goes on gets as many tries again";
}

TEST(Trials, F8_the_scale_is_never_zero_or_denormal_but_may_go_below_one) {
  GradScaler scaler({.init_scale = 1, .max_skips_in_a_row = 0});
  const auto p = one_parameter();
  SGD optimizer({p}, 1.0);
  for (int i = 0; i < 200; ++i) {
    optimizer.zero_grad();
    backward(scaler, p, kNan);
    scaler.step(optimizer);
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 0x1p-126);
  EXPECT_TRUE(std::isnormal(static_cast<float>(scaler.get_scale())));
  EXPECT_EQ(scaler.skips_in_a_row(), 200);
}

TEST(Trials, F8_a_loss_that_needs_a_scale_below_one_gets_it) {
  GradScaler scaler({.init_scale = 65536});
  const auto w = at::ones({1}).requires_grad_();
  SGD optimizer({w}, 0x1p-22);
  bool skipped = true;
  while (skipped) {
    optimizer.zero_grad();
    // The gradient that reaches fp16 is 2^21 times the scale: it fits from 2^-6 on.
    const auto y = (w.to(at::kHalf) * 1).to(at::kFloat) * 0x1p21;
    scaler.scale(y.sum()).backward();
    skipped = scaler.step(optimizer).skipped();
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 0x1p-6);
  EXPECT_EQ(w.item<float>(), 0.5);
}

// F10: every value of an uncoalesced fp16 gradient is finite, the sum of a row is not.
TEST(Trials, F10_duplicate_rows_that_overflow_when_summed_are_found) {
  for (const bool on_device : {false, true}) {
    const auto p = at::zeros({8}, at::kHalf).requires_grad_();
    SGD stock({p}, 1.0);
    testing::DeviceSgd device({p}, 1.0);
    torch::optim::Optimizer& optimizer = on_device ? static_cast<torch::optim::Optimizer&>(device) : stock;
    GradScaler scaler({.init_scale = 1, .allow_fp16_gradients = true});
    scaler.scale(at::ones({}));
    p.mutable_grad() =
        at::sparse_coo_tensor(at::tensor({5, 5}, at::kLong).view({1, 2}), at::full({2}, 40000, at::kHalf), {8});
    EXPECT_TRUE(scaler.step(optimizer).skipped());
    EXPECT_TRUE(p.grad().is_coalesced());
  }
}

// N3: scale and growth counter are not saved, or are changed by the load itself.
TEST(Trials, N3_the_growth_counter_is_restored) {
  GradScaler source({.init_scale = 1024, .growth_interval = 2});
  const auto p = one_parameter();
  SGD optimizer({p}, 0.1);
  backward(source, p, 1);
  source.step(optimizer);
  source.update();
  GradScaler target;
  target.load_state_dict(source.state_dict());
  backward(target, p, 1);
  target.step(optimizer);
  target.update();
  EXPECT_EQ(target.get_scale(), 2048);
}

// J3: gradients that were unscaled for clipping are divided by the scale again.
TEST(Trials, J3_unscaled_gradients_are_not_divided_again) {
  const auto run = [](bool on_device, int way) {
    GradScaler scaler({.init_scale = 1024});
    const auto p = one_parameter(0);
    SGD stock({p}, 1.0);
    testing::DeviceSgd device({p}, 1.0);
    torch::optim::Optimizer& optimizer = on_device ? static_cast<torch::optim::Optimizer&>(device) : stock;
    for (int i = 0; i < 5; ++i) {
      optimizer.zero_grad();
      backward(scaler, p, 2);
      if (way >= 1) {
        scaler.unscale_(optimizer);
      }
      if (way == 2) {
        torch::nn::utils::clip_grad_norm_(p, 1.0);
      }
      scaler.step(optimizer);
      scaler.update();
    }
    return p.item<float>();
  };
  for (const int way : {0, 1, 2}) {
    EXPECT_EQ(run(true, way), run(false, way)) << way;
    EXPECT_NEAR(run(true, way), way == 2 ? -5 : -10, 1e-4);
  }
}

}  // namespace
}  // namespace lockstep::amp
