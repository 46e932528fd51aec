// SPDX-License-Identifier: Apache-2.0
// What went wrong with fused optimizers in other systems. The number of a trial is its name.
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/sgd.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;
using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

TEST(Trials, H1_small_updates_add_up_in_the_master_and_are_lost_without) {
  struct Case {
    at::ScalarType dtype;
    double update, master, parameter;
  };
  for (const auto& c : {Case{at::kBFloat16, 6e-4, 0.94, 0.94140625}, Case{at::kHalf, 1e-4, 0.99, 0.990234375}}) {
    for (const bool kept : {true, false}) {
      auto parameter = parameter_of(1, c.dtype);
      SGD optimizer(Tensors{parameter}, SGDOptions(c.update), {.master_weights = kept});
      for (int i = 0; i < 100; ++i) {
        set_gradient(parameter, 1);
        optimizer.step();
      }
      EXPECT_EQ(parameter[0].item<double>(), kept ? c.parameter : 1.0);
      if (kept) {
        EXPECT_NEAR(optimizer.master(parameter)[0].item<double>(), c.master, 1e-5);
      }
    }
  }
}

TEST(Trials, H2_a_zero_gradient_in_fp16_moves_nothing) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    for (const bool kept : {true, false}) {
      auto parameter = parameter_of(3, dtype);
      Adam optimizer(Tensors{parameter}, {}, {.master_weights = kept});
      set_gradient(parameter, 0);
      optimizer.step();
      EXPECT_TRUE(same_bits(parameter, at::full({8}, 3, dtype)));
    }
  }
}

/// Everything that can write a parameter behind the optimizer's back, version counter bumped or not.
std::vector<std::function<void(at::Tensor&)>> writers() {
  return {[](at::Tensor& p) { p.detach().fill_(5); }, [](at::Tensor& p) { p.set_data(at::full_like(p, 5)); },
          [](at::Tensor& p) { static_cast<at::Half*>(p.mutable_data_ptr())[3] = 5; },
          [](at::Tensor& p) { p.detach().narrow(0, 2, 3).copy_(at::full({3}, 5, at::kFloat)); }};
}

TEST(Trials, H5_whoever_writes_the_parameter_is_heard) {
  for (const auto& write : writers()) {
    for (const int when : {0, 1, 2}) {  // before the first step, after it, after a backward
      auto parameter = parameter_of(1, at::kHalf);
      SGD optimizer(Tensors{parameter}, SGDOptions(0.001), FusedOptions{.master_weights = true});
      for (int step = 0; step < when; ++step) {
        set_gradient(parameter, 1);
        optimizer.step();
      }
      const auto master_before = when > 0 ? optimizer.master(parameter).clone() : parameter.detach().to(at::kFloat);
      const auto before = parameter.detach().clone();
      set_gradient(parameter, 0);
      write(parameter);
      const auto written = parameter.detach().clone();
      optimizer.step();
      EXPECT_TRUE(same_bits(parameter, written));
      const auto expected = at::where(written != before, written.to(at::kFloat), master_before);
      EXPECT_TRUE(same_bits(optimizer.master(parameter), expected));
    }
  }
}

TEST(Trials, J2_a_step_takes_an_empty_tensor_anywhere) {
  for (int count = 1; count <= 130; count += 43) {
    for (int place = 0; place <= count; ++place) {
      Tensors parameters;
      for (int i = 0; i <= count; ++i) {
        parameters.push_back(i == place ? at::empty({0}) : at::full({3}, static_cast<double>(i)));
        parameters.back().requires_grad_().mutable_grad() = at::ones_like(parameters.back().detach());
      }
      SGD optimizer(parameters, torch::optim::SGDOptions(0.5));
      optimizer.step_scaled(one(2), {});
      for (int i = 0; i <= count; ++i) {
        if (i != place) {
          ASSERT_TRUE(same_bits(parameters[static_cast<std::size_t>(i)], at::full({3}, i - 0.25)));
        }
      }
    }
  }
}

enum class Way { step_only, unscale_first, unscale_and_clip };

template <class Optimizer>
Tensors train_scaled(Way way) {
  auto weight = at::ones({5}).requires_grad_();
  Optimizer optimizer(Tensors{weight}, SGDOptions(0.1));
  amp::GradScaler scaler({.init_scale = 1024});
  for (int step = 0; step < 5; ++step) {
    scaler.scale((weight * static_cast<double>(step + 1)).sum()).backward();
    if (way != Way::step_only) {
      scaler.unscale_(optimizer);
    }
    if (way == Way::unscale_and_clip) {
      clip_grad_norm_({weight}, 0.5);
    }
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
  }
  return {weight.detach()};
}

TEST(Trials, J3_gradients_are_unscaled_exactly_once) {
  for (const auto way : {Way::step_only, Way::unscale_first, Way::unscale_and_clip}) {
    const auto fused = train_scaled<SGD>(way);
    expect_same_bits(fused, train_scaled<torch::optim::SGD>(way), std::to_string(static_cast<int>(way)));
    if (way != Way::unscale_and_clip) {
      EXPECT_NEAR(fused[0][0].item<double>(), 1 - 0.1 * 15, 1e-6);
    }
  }
}

}  // namespace
}  // namespace lockstep::optim
