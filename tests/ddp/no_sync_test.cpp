// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"

namespace lockstep {
namespace {

/// A single weight whose gradient on this rank is 1 on rank 0 and 3 on rank 1, as often as `pass` is called.
struct Scalar {
  at::Tensor w = at::zeros({1}).requires_grad_();
  DataParallelBase ddp;
  double own;

  explicit Scalar(World& world) : ddp(ModelTensors{{{"w", w}}, {}}, world), own(world.rank() == 0 ? 1 : 3) {}
  at::Tensor loss() const { return (w * own).sum(); }
  float grad() const { return w.grad().item<float>(); }
};

TEST(NoSync, D1_the_backward_decides_not_the_forward) {
  for (const bool forward_inside : {false, true}) {
    for (const bool backward_inside : {false, true}) {
      run_ranks(2, [&](World& world) {
        const Scalar model(world);
        at::Tensor loss;
        if (forward_inside) {
          const auto quiet = model.ddp.no_sync();
          loss = model.loss();
        } else {
          loss = model.loss();
        }
        const auto before = world.collectives_issued();
        if (backward_inside) {
          const auto quiet = model.ddp.no_sync();
          loss.backward();
        } else {
          loss.backward();
        }
        EXPECT_EQ(model.grad(), backward_inside ? model.own : 2.0);
        EXPECT_EQ(world.collectives_issued() - before, backward_inside ? 0U : 1U);
      });
    }
  }
}

TEST(NoSync, a_window_reduces_the_sum_once) {
  run_ranks(2, [](World& world) {
    const Scalar model(world);
    for (int window = 0; window < 3; ++window) {
      model.w.mutable_grad() = at::Tensor();
      {
        const auto quiet = model.ddp.no_sync();
        for (int micro = 0; micro < 3; ++micro) {
          model.loss().backward();
        }
        EXPECT_EQ(model.grad(), 3 * model.own);
      }
      model.loss().backward();
      EXPECT_EQ(model.grad(), 8);
      EXPECT_EQ(model.ddp.statistics().all_reduces, static_cast<std::uint64_t>(window) + 1);
    }
  });
}

TEST(NoSync, guards_nest_and_survive_exceptions) {
  run_ranks(2, [](World& world) {
    const Scalar model(world);
    try {
      const auto outer = model.ddp.no_sync();
      { const auto inner = model.ddp.no_sync(); }
      model.loss().backward();
      EXPECT_EQ(model.grad(), model.own);
      throw std::runtime_error("user");
    } catch (const std::runtime_error&) {
    }
    model.w.mutable_grad() = at::Tensor();
    model.loss().backward();
    EXPECT_EQ(model.grad(), 2);
  });
}

TEST(NoSync, B10_what_only_a_quiet_pass_used_is_reduced_with_the_window) {
  for (const auto unused : {UnusedParameters::Error, UnusedParameters::Detect}) {
    run_ranks(2, [&](World& world) {
      auto a = at::zeros({1}).requires_grad_();
      auto b = at::zeros({1}).requires_grad_();
      const DataParallelBase ddp(ModelTensors{{{"a", a}, {"b", b}}, {}}, world, {.unused = unused});
      const double own = world.rank() == 0 ? 1 : 3;
      for (int window = 0; window < 2; ++window) {
        a.mutable_grad() = b.mutable_grad() = at::Tensor();
        {
          const auto quiet = ddp.no_sync();
          (a * own).sum().backward();
        }
        (b * own).sum().backward();
        EXPECT_EQ(a.grad().item<float>(), 2);
        EXPECT_EQ(b.grad().item<float>(), 2);
      }
    });
  }
}

TEST(NoSync, B5_the_first_backward_ever_may_be_quiet) {
  run_ranks(2, [](World& world) {
    const Scalar model(world);
    {
      const auto quiet = model.ddp.no_sync();
      model.loss().backward();
    }
    model.loss().backward();
    EXPECT_EQ(model.grad(), 4);
  });
}

TEST(NoSync, D5_an_infinity_of_a_quiet_pass_reaches_every_rank) {
  run_ranks(2, [](World& world) {
    const Scalar model(world);
    {
      const auto quiet = model.ddp.no_sync();
      (model.loss() * (world.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0)).backward();
    }
    model.loss().backward();
    EXPECT_TRUE(std::isinf(model.grad()));
  });
}

}  // namespace
}  // namespace lockstep
