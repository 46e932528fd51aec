// SPDX-License-Identifier: Apache-2.0
// Trials D: accumulation over several backward passes, with and without a loss scale.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <limits>
#include <optional>

#include "ddp/trials.h"
#include "lockstep/amp/grad_scaler.h"

namespace lockstep {
namespace {

using Quiet = std::optional<DataParallelBase::NoSync>;

TEST(Trials, D1_forward_in_or_out_of_no_sync_backward_in_or_out) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool forward_inside : {false, true}) {
      for (const bool backward_inside : {false, true}) {
        test::run(ranks, [&](World& world) {
          const auto w = at::zeros({1}).requires_grad_();
          const DataParallelBase ddp(test::named({w}), world);
          Quiet quiet;
          if (forward_inside) {
            quiet.emplace(ddp.no_sync());
          }
          const auto loss = (w * (2.0 * world.rank() + 1)).sum();
          quiet.reset();
          if (backward_inside) {
            quiet.emplace(ddp.no_sync());
          }
          loss.backward();
          EXPECT_EQ(ddp.statistics().all_reduces, backward_inside ? 0U : 1U);
          EXPECT_NEAR(w.grad().item<double>(), backward_inside ? 2 * world.rank() + 1 : world.size(), 1e-6);
        });
      }
    }
  }
}

TEST(Trials, D1_guards_that_nest_or_are_left_by_an_exception_restore_the_flag) {
  test::run(2, [](World& world) {
    const auto w = at::zeros({1}).requires_grad_();
    const DataParallelBase ddp(test::named({w}), world);
    const auto outer = std::make_unique<DataParallelBase::NoSync>(ddp.no_sync());
    EXPECT_THROW(
        {
          const auto inner = ddp.no_sync();
          throw std::runtime_error("from the user's code");
        },
        std::runtime_error);
    (w * world.rank()).sum().backward();
    EXPECT_EQ(ddp.statistics().quiet_backwards, 1U);
  });
}

TEST(Trials, D3_the_last_short_window_counts_its_own_batches) {
  constexpr int kBatches = 5;
  constexpr int kWindow = 2;
  for (const int ranks : {1, 2, 3}) {
    test::run(ranks, [&](World& world) {
      const auto w = at::zeros({1}).requires_grad_();
      const DataParallelBase ddp(test::named({w}), world);
      int steps = 0;
      for (int first = 0; first < kBatches; first += kWindow) {
        const int in_window = std::min(kWindow, kBatches - first);
        w.mutable_grad() = at::Tensor();
        for (int micro = 0; micro < in_window; ++micro) {
          Quiet quiet;
          if (micro + 1 < in_window) {
            quiet.emplace(ddp.no_sync());
          }
          (w.sum() / in_window).backward();
        }
        EXPECT_NEAR(w.grad().item<double>(), 1, 1e-6) << "window " << steps;
        ++steps;
      }
      EXPECT_EQ(steps, 3);
      EXPECT_EQ(ddp.statistics().reduced_backwards, 3U);
    });
  }
}

/// A rank's model, scaler and optimizer; the gradient of w without a scale is 1 in every micro-batch.
struct Scaled {
  at::Tensor w = at::zeros({1}).requires_grad_();
  DataParallelBase ddp;
  amp::GradScaler scaler{{.init_scale = 4, .growth_interval = 1}};
  torch::optim::SGD sgd{{w}, torch::optim::SGDOptions(1)};

  explicit Scaled(const World& world) : ddp(test::named({w}), world) {}
  void quiet_backward(double factor = 1) {
    const auto quiet = ddp.no_sync();
    backward(factor);
  }
  void backward(double factor = 1) { scaler.scale(w.sum() * factor).backward(); }
};

TEST(Trials, D4_a_scale_that_changes_inside_a_window_is_an_error) {
  test::run(2, [](World& world) {
    Scaled updated(world);
    updated.quiet_backward();
    EXPECT_THROW(updated.scaler.update(), InputError) << "nothing was looked at yet";
    updated.backward();
    updated.scaler.step(updated.sgd);
    EXPECT_EQ(updated.w.item<double>(), -2);
    updated.scaler.update();

    Scaled unscaled(world);
    unscaled.quiet_backward();
    unscaled.scaler.unscale_(unscaled.sgd);
    unscaled.backward();
    EXPECT_THROW(unscaled.scaler.step(unscaled.sgd), InputError) << "the sum mixes two scales";
    EXPECT_EQ(unscaled.w.item<double>(), 0);
  });
}

TEST(Trials, D5_an_overflow_in_a_quiet_micro_batch_of_one_rank_skips_on_all) {
  for (const int ranks : {2, 3, 4}) {
    test::run(ranks, [](World& world) {
      Scaled model(world);
      const bool bad = world.rank() == 1;
      model.quiet_backward(bad ? std::numeric_limits<double>::infinity() : 1.0);
      model.backward();
      EXPECT_TRUE(std::isinf(model.w.grad().item<double>()));
      EXPECT_TRUE(model.scaler.step(model.sgd).skipped());
      model.scaler.update();
      EXPECT_EQ(model.scaler.get_scale(), 2);
      EXPECT_EQ(model.w.item<double>(), 0);
      model.sgd.zero_grad();
      model.quiet_backward();
      model.backward();
      EXPECT_FALSE(model.scaler.step(model.sgd).skipped());
      model.scaler.update();
      EXPECT_EQ(model.scaler.get_scale(), 4);
      EXPECT_EQ(model.w.item<double>(), -2);
      EXPECT_EQ(model.ddp.difference(), "");
    });
  }
}

}  // namespace
}  // namespace lockstep
