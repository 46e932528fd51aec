// SPDX-License-Identifier: Apache-2.0
// How windows end: full, short, weighed by counts, spoilt. Gradients are constants, so that wanted values are exact.
#include <torch/optim/sgd.h>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/error.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/step/train_step.h"

namespace lockstep {
namespace {

using torch::optim::SGDOptions;

/// One weight at 0 and a learning rate of 1: after a step it is minus the gradient that was used. The loss of an input
/// is input * weight.
struct Slope {
  at::Tensor weight = at::zeros({1}).requires_grad_();
  torch::optim::SGD optimizer{std::vector<at::Tensor>{weight}, SGDOptions(1.0)};

  TrainStep::Loss loss() const {
    return [w = weight](const TrainStep::Inputs& in) { return (w * in[0]).sum(); };
  }
  /// The gradient of the step taken since the last call.
  double used() {
    const at::NoGradGuard no_grad;
    const auto value = -weight.item<double>();
    weight.zero_();
    return value;
  }
};

at::Tensor slope(double value) {
  return at::full({1}, value);
}

TEST(Windows, D3_a_last_short_window_is_divided_by_its_own_length) {
  for (const bool said_in_advance : {false, true}) {
    Slope model;
    TrainStep step({.optimizer = model.optimizer}, model.loss(), {.accumulate = 2});
    std::vector<double> used;
    for (int i = 0; i < 5; ++i) {
      if (step({slope(1)}, {.last = said_in_advance && i == 4}).ended()) {
        used.push_back(model.used());
      }
    }
    if (step.finish().ended()) {
      used.push_back(model.used());
    }
    EXPECT_EQ(used, (std::vector<double>{1, 1, 1}));
    EXPECT_EQ(step.steps(), 3);
    EXPECT_FALSE(step.finish().ended());
  }
}

/// A loss that is its weight: backward hands what it starts from to the weight as it is, and `.grad` may keep it.
TrainStep::Loss identity(const at::Tensor& weight) {
  return [weight](const TrainStep::Inputs&) { return weight.squeeze(); };
}

TEST(Windows, gradients_that_are_what_backward_started_from_spoil_no_later_window) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const std::int64_t accumulate : {1, 2, 4}) {
      Slope model{.weight = at::zeros({1}, dtype).requires_grad_()};
      TrainStep step({.optimizer = model.optimizer}, identity(model.weight), {.accumulate = accumulate});
      for (std::int64_t i = 1; i <= 3 * accumulate; ++i) {
        if (step({slope(1)}).ended()) {
          EXPECT_EQ(model.used(), 1) << dtype << ", " << accumulate << " a window, micro-batch " << i;
        }
      }
    }
  }
}

TEST(Windows, clipping_what_backward_started_from_spoils_no_later_step) {
  Slope model;
  TrainStep step({.optimizer = model.optimizer}, identity(model.weight), {.clip_norm = 0.5});
  for (int i = 0; i < 3; ++i) {
    const auto norm = step({slope(1)}).grad_norm();
    EXPECT_NEAR(norm.item<double>(), 1, 1e-6) << "step " << i;
    EXPECT_NEAR(model.used(), 0.5, 1e-5) << "step " << i;
  }
}

TEST(Windows, quiet_micro_batches_may_keep_what_backward_started_from) {
  for (const bool with_scaler : {false, true}) {
    run_ranks(2, [&](World& world) {
      Slope model;
      DataParallelBase ddp(ModelTensors{{{"w", model.weight}}, {}}, world);
      amp::GradScaler scaler({.enabled = false});
      TrainStep step({.optimizer = model.optimizer, .ddp = &ddp, .scaler = with_scaler ? &scaler : nullptr},
                     identity(model.weight), {.accumulate = 4});
      for (int i = 0; i < 12; ++i) {
        if (step({slope(1)}).ended()) {
          EXPECT_EQ(model.used(), 1) << "micro-batch " << i;
        }
      }
    });
  }
}

TEST(Windows, a_short_window_is_reduced_over_ranks_once) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](World& world) {
      Slope model;
      DataParallelBase ddp(ModelTensors{{{"w", model.weight}}, {}}, world);
      TrainStep step({.optimizer = model.optimizer, .ddp = &ddp}, model.loss(), {.accumulate = 4});
      const auto before = world.collectives_issued();
      for (const double value : {1.0, 3.0}) {
        step({slope(value * (world.rank() + 1))});
      }
      EXPECT_TRUE(step.finish().ended());
      EXPECT_EQ(world.collectives_issued() - before, ranks > 1 ? 1U : 0U);  // alone there is nothing to reduce
      EXPECT_NEAR(model.used(), 2.0 * (ranks + 1) / 2, 1e-6);
    });
  }
}

TEST(Windows, counts_weigh_over_the_window_and_over_ranks) {
  for (const double typical : {1.0, 8.0}) {
    run_ranks(2, [&](World& world) {
      Slope model;
      DataParallelBase ddp(ModelTensors{{{"w", model.weight}}, {}}, world);
      TrainStep step({.optimizer = model.optimizer, .ddp = &ddp}, model.loss(),
                     {.accumulate = 2, .weigh_by_count = true, .typical_count = typical});
      // Rank 0: means 1 and 5 over 3 and 1; rank 1: means 2 and 0 over 4 and 0. All together: (3 + 5 + 8) / 8.
      const bool first = world.rank() == 0;
      for (int window = 0; window < 2; ++window) {
        step({slope(first ? 1 : 2)}, {.count = first ? 3.0 : 4.0});
        step({slope(first ? 5 : 0)}, {.count = first ? 1.0 : 0.0});
        EXPECT_NEAR(model.used(), 2.0, 1e-6);
      }
      step({slope(first ? 1 : 2)}, {.count = first ? 3.0 : 4.0});
      step.finish();
      EXPECT_NEAR(model.used(), 11.0 / 7, 1e-6);
    });
  }
}

TEST(Windows, a_loss_function_that_throws_leaves_the_window_as_it_was) {
  Slope model;
  bool fails = false;
  TrainStep step({.optimizer = model.optimizer},
                 [&](const TrainStep::Inputs& in) {
                   TORCH_CHECK(!fails, "bad batch");
                   return model.loss()(in);
                 },
                 {.accumulate = 2});
  step({slope(1)});
  fails = true;
  EXPECT_THROW(step({slope(100)}), c10::Error);
  fails = false;
  EXPECT_EQ(step.pending(), 1);
  EXPECT_TRUE(step({slope(3)}).ended());
  EXPECT_EQ(model.used(), 2);
}

TEST(Windows, after_a_failed_backward_the_window_must_be_abandoned) {
  Slope model;
  bool fails = true;
  TrainStep step({.optimizer = model.optimizer},
                 [&](const TrainStep::Inputs& in) {
                   auto loss = model.loss()(in);
                   if (fails) {
                     loss.register_hook([](const at::Tensor&) -> at::Tensor { TORCH_CHECK(false, "in backward"); });
                   }
                   return loss;
                 },
                 {.accumulate = 2});
  EXPECT_THROW(step({slope(1)}), std::exception);
  fails = false;
  EXPECT_THROW(step({slope(1)}), InputError);
  EXPECT_THROW(step.finish(), InputError);
  step.abandon();
  step({slope(2)});
  step({slope(4)});
  EXPECT_EQ(model.used(), 3);
}

TEST(Windows, bad_losses_and_options_are_refused) {
  Slope model;
  const auto text_of = [&](const TrainStep::Loss& loss) -> std::string {
    try {
      TrainStep step({.optimizer = model.optimizer}, loss);
      step({slope(1)});
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(text_of([&](const auto&) { return model.weight.detach().sum(); }).find("without history"),
            std::string::npos);
  EXPECT_NE(text_of([&](const auto&) { return model.weight.expand({3}) * 1; }).find("one floating element"),
            std::string::npos);
  EXPECT_NE(text_of([](const auto&) { return at::Tensor(); }).find("undefined"), std::string::npos);
  EXPECT_NE(text_of(nullptr).find("no loss function"), std::string::npos);
  EXPECT_THROW(TrainStep({.optimizer = model.optimizer}, model.loss(), {.accumulate = 0}), InputError);
  EXPECT_THROW(TrainStep({.optimizer = model.optimizer}, model.loss(), {.clip_norm = -1}), InputError);
  TrainStep step({.optimizer = model.optimizer}, model.loss());
  EXPECT_THROW(step({slope(1)}, {.count = -1}), InputError);
}

TEST(Windows, capture_without_a_gpu_says_why_it_stays_eager) {
  Slope model;
  TrainStep step({.optimizer = model.optimizer}, model.loss(), {.capture = true});
  EXPECT_EQ(step.describe(), "eager: the parameters are on cpu, only CUDA steps can be captured");
  EXPECT_TRUE(step({slope(1)}).ended());
  EXPECT_THROW(TrainStep({.optimizer = model.optimizer}, model.loss(), {.capture = true, .require_capture = true}),
               InputError);
}

}  // namespace
}  // namespace lockstep
