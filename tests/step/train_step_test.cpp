// SPDX-License-Identifier: Apache-2.0
// TrainStep beside the loop one would write by hand, bit for bit, in every kind of precision.
#include "lockstep/step/train_step.h"

#include <torch/optim/adamw.h>

#include "lockstep/amp/opt_level.h"
#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/sgd.h"
#include "step/support.h"

namespace lockstep {
namespace {

using namespace lockstep::test;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr int kWindows = 6;
constexpr int kAccumulate = 3;
constexpr double kClip = 0.3;

template <class Optimizer>
std::vector<at::Tensor> by_hand(World& world, amp::OptLevel level) {
  Mlp net(5 + static_cast<std::uint64_t>(world.rank()));
  Optimizer optimizer(net.parameters(), AdamWOptions(0.01));
  auto mixed = amp::initialize(net, optimizer, level, {.low_precision = at::kBFloat16});
  DistributedDataParallel ddp(net, world);
  for (int i = 0; i < kWindows * kAccumulate; ++i) {
    const auto index = i * world.size() + world.rank();
    const bool ends = i % kAccumulate == kAccumulate - 1;
    std::optional<DataParallelBase::NoSync> quiet;
    if (!ends) {
      quiet.emplace(ddp.no_sync());
    }
    const auto loss = squared_error(mixed.forward(ddp, inputs_of(index)), targets_of(index));
    (mixed.scale(loss) / kAccumulate).backward();
    if (ends) {
      mixed.step(optimizer, {.clip_norm = kClip});
    }
  }
  return values_of(net.parameters());
}

template <class Optimizer>
std::vector<at::Tensor> by_train_step(World& world, amp::OptLevel level) {
  Mlp net(5 + static_cast<std::uint64_t>(world.rank()));
  Optimizer optimizer(net.parameters(), AdamWOptions(0.01));
  auto mixed = amp::initialize(net, optimizer, level, {.low_precision = at::kBFloat16});
  DistributedDataParallel ddp(net, world);
  TrainStep step({.optimizer = optimizer, .ddp = &ddp, .amp = &mixed},
                 [&](const auto& in) { return squared_error(mixed.forward(ddp, in[0]), in[1]); },
                 {.accumulate = kAccumulate, .clip_norm = kClip});
  for (int i = 0; i < kWindows * kAccumulate; ++i) {
    const auto index = i * world.size() + world.rank();
    const auto result = step({inputs_of(index), targets_of(index)});
    EXPECT_EQ(result.ended(), i % kAccumulate == kAccumulate - 1);
    EXPECT_EQ(result.grad_norm().defined(), result.ended());
  }
  EXPECT_EQ(ddp.difference(), "");
  return values_of(net.parameters());
}

TEST(TrainSteps, equal_the_loop_by_hand_at_every_level_and_world_size) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto level : {amp::OptLevel::O0, amp::OptLevel::O1, amp::OptLevel::O2, amp::OptLevel::O3}) {
      run_ranks(ranks, [&](World& world) {
        const auto name = amp::to_string(level);
        expect_equal(by_train_step<optim::AdamW>(world, level), by_hand<optim::AdamW>(world, level), name);
        expect_equal(by_train_step<torch::optim::AdamW>(world, level), by_hand<torch::optim::AdamW>(world, level),
                     name);
      });
    }
  }
}

TEST(TrainSteps, a_window_equals_one_large_batch) {
  for (const double clip : {0.0, 0.2}) {
    Mlp windows, whole;
    optim::SGD small(windows.parameters(), SGDOptions(0.1));
    optim::SGD large(whole.parameters(), SGDOptions(0.1));
    const auto loss_of = [](Mlp& net) {
      return [&net](const TrainStep::Inputs& in) { return squared_error(net.forward(in[0]), in[1]); };
    };
    TrainStep step({.optimizer = small}, loss_of(windows), {.accumulate = 4, .clip_norm = clip});
    TrainStep at_once({.optimizer = large}, loss_of(whole), {.clip_norm = clip});
    for (int window = 0; window < 5; ++window) {
      const auto x = inputs_of(window, 8);
      const auto y = targets_of(window, 8);
      for (int i = 0; i < 4; ++i) {
        step({x.slice(0, 2 * i, 2 * i + 2), y.slice(0, 2 * i, 2 * i + 2)});
      }
      at_once({x, y});
    }
    // Five steps, each with a sum of four parts in another order: a few units in the last place of weights near 1.
    expect_equal(values_of(windows.parameters()), values_of(whole.parameters()), "weights", 5e-6);
  }
}

TEST(TrainSteps, J5_clipping_means_the_true_gradients_whatever_the_scale) {
  for (const bool fused : {true, false}) {
    const auto weight = at::zeros({4}).requires_grad_();
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (fused) {
      optimizer = std::make_unique<optim::SGD>(std::vector<at::Tensor>{weight}, SGDOptions(1.0));
    } else {
      optimizer = std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{weight}, SGDOptions(1.0));
    }
    amp::GradScaler scaler;
    TrainStep step({.optimizer = *optimizer, .scaler = &scaler}, [&](const auto& in) { return (weight * in[0]).sum(); },
                   {.clip_norm = 1.0});
    const auto result = step({at::full({4}, 5.0)});
    EXPECT_NEAR(result.grad_norm().template item<float>(), 10, 1e-4);
    EXPECT_NEAR(weight.norm().item<float>(), 1, 1e-5);
  }
}

TEST(TrainSteps, clip_grad_norm_of_the_scaler_unscales_exactly_once) {
  for (const bool unscaled_before : {false, true}) {
    const auto weight = at::zeros({4}).requires_grad_();
    optim::SGD optimizer(std::vector<at::Tensor>{weight}, SGDOptions(1.0));
    amp::GradScaler scaler;
    scaler.scale((weight * 5).sum()).backward();
    if (unscaled_before) {
      scaler.unscale_(optimizer);
    }
    EXPECT_NEAR(scaler.clip_grad_norm_(optimizer, 1.0).item<float>(), 10, 1e-4);
    scaler.step(optimizer);
    scaler.update();
    EXPECT_NEAR(weight.norm().item<float>(), 1, 1e-5);
  }
}

TEST(TrainSteps, F6_a_skipped_step_does_not_advance_the_schedule) {
  for (const bool fused : {true, false}) {
    const auto weight = at::ones({1}).requires_grad_();
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (fused) {
      optimizer = std::make_unique<optim::SGD>(std::vector<at::Tensor>{weight}, SGDOptions(0.1));
    } else {
      optimizer = std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{weight}, SGDOptions(0.1));
    }
    amp::GradScaler scaler({.init_scale = 0x1p24});
    optim::LrScheduler schedule(*optimizer, optim::step_lr(1, 0.1));
    TrainStep step({.optimizer = *optimizer, .scaler = &scaler, .schedule = &schedule},
                   [&](const auto& in) { return (weight * in[0]).sum(); });
    EXPECT_TRUE(step({at::full({1}, std::numeric_limits<float>::infinity())}).skipped());
    EXPECT_EQ(weight.item<float>(), 1);
    EXPECT_EQ(schedule.steps(), 0);
    EXPECT_FALSE(step({at::ones({1})}).skipped());
    EXPECT_EQ(schedule.steps(), 1);
    EXPECT_DOUBLE_EQ(schedule.learning_rates()[0], 0.01);
    EXPECT_EQ(scaler.get_scale(), 0x1p23);
  }
}

TEST(TrainSteps, D4_the_scale_moves_only_between_windows) {
  const auto weight = at::zeros({1}).requires_grad_();
  optim::SGD optimizer(std::vector<at::Tensor>{weight}, SGDOptions(1.0));
  amp::GradScaler scaler({.init_scale = 4, .growth_interval = 1});
  TrainStep step({.optimizer = optimizer, .scaler = &scaler}, [&](const auto& in) { return (weight * in[0]).sum(); },
                 {.accumulate = 2});
  for (int window = 1; window <= 3; ++window) {
    step({at::ones({1})});
    EXPECT_EQ(scaler.get_scale(), 4 << (window - 1));
    step({at::ones({1})});
    EXPECT_EQ(scaler.get_scale(), 4 << window);
    EXPECT_EQ(weight.item<float>(), -window);
  }
}

}  // namespace
}  // namespace lockstep
