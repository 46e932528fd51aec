// SPDX-License-Identifier: Apache-2.0
// Trials L: what 16-bit sums and 16-bit messages do to gradients.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "ddp/trials.h"
#include "lockstep/amp/grad_scaler.h"

namespace lockstep {
namespace {

/// The reduced gradient where every rank's own one is `gradient`.
double reduced(const World& world, at::ScalarType dtype, double gradient, const DataParallelOptions& options = {},
               const CommHook& hook = nullptr) {
  const auto w = at::zeros({1}, dtype).requires_grad_();
  DataParallelBase ddp(test::named({w}), world, options);
  if (hook) {
    ddp.register_comm_hook(hook);
  }
  w.backward(at::full({1}, gradient, dtype));
  EXPECT_EQ(w.grad().scalar_type(), dtype);
  return w.grad().item<double>();
}

TEST(Trials, L1_a_sum_that_leaves_the_range_of_half_though_the_mean_does_not) {
  for (const int ranks : {1, 2, 3, 4}) {
    test::run(ranks, [](World& world) {
      EXPECT_NEAR(reduced(world, at::kHalf, 30000), 30000, 32);
      EXPECT_NEAR(reduced(world, at::kFloat, 30000, {}, compress_hook(world, at::kHalf)), 30000, 32);
      EXPECT_EQ(reduced(world, at::kHalf, 30000, {.gradient_predivide_factor = 1}, float_reduction_hook(world)), 30000);
      if (world.size() > 2) {
        EXPECT_TRUE(std::isinf(reduced(world, at::kHalf, 30000, {.gradient_predivide_factor = 1})));
      }
    });
  }
}

/// The factor of a world of 1,024 ranks, tried on four: a tiny gradient is lost if all of the division comes first.
TEST(Trials, L1_a_split_factor_keeps_small_gradients_of_large_worlds) {
  test::run(4, [](World& world) {
    EXPECT_NEAR(reduced(world, at::kHalf, 1e-4, {.gradient_predivide_factor = 32}), 1e-4, 0.02e-4);
    EXPECT_GT(std::abs(reduced(world, at::kHalf, 1e-4, {.gradient_predivide_factor = 1024}) - 1e-4), 0.15e-4);
  });
}

TEST(Trials, L1_a_mean_beyond_half_is_infinite_and_skipped_on_all_ranks) {
  for (const int ranks : {1, 2, 4}) {
    test::run(ranks, [](World& world) {
      const auto w = at::zeros({1}).requires_grad_();
      DataParallelBase ddp(test::named({w}), world);
      ddp.register_comm_hook(compress_hook(world, at::kHalf));
      torch::optim::SGD sgd({w}, torch::optim::SGDOptions(1));
      amp::GradScaler scaler({.init_scale = 1024});
      scaler.scale(w.sum() * (world.rank() == 0 ? 200.0 * world.size() : 0.0)).backward();
      EXPECT_TRUE(std::isinf(w.grad().item<double>()));
      EXPECT_TRUE(scaler.step(sgd).skipped());
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 512);
      EXPECT_EQ(w.item<double>(), 0);
    });
  }
}

TEST(Trials, L2_the_wire_rounds_like_half_and_results_come_back_in_their_own_dtype_and_place) {
  for (const int ranks : {1, 2, 4}) {
    test::run(ranks, [](World& world) {
      const auto half = compress_hook(world, at::kHalf);
      const auto bfloat16 = compress_hook(world, at::kBFloat16);
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        EXPECT_EQ(reduced(world, dtype, 1 + 0x1p-12, {}, half), 1);
        EXPECT_EQ(reduced(world, dtype, 1 + 0x1p-10, {}, half), 1 + 0x1p-10);
        EXPECT_EQ(reduced(world, dtype, 1 + 0x1p-9, {}, bfloat16), 1);
        EXPECT_EQ(reduced(world, dtype, 1e30, {}, bfloat16) > 0.9e30, true);
      }
      // 16-bit gradients travel as they are: half would not survive a detour through bfloat16.
      EXPECT_EQ(reduced(world, at::kHalf, 1 + 0x1p-10, {}, bfloat16), 1 + 0x1p-10);
      EXPECT_EQ(reduced(world, at::kBFloat16, 0x1p100, {}, half), 0x1p100);
    });
  }
}

TEST(Trials, L2_the_backend_is_given_16_bits) {
  // Two ranks that call different collectives are shown both calls, with the dtype that goes over the wire.
  const auto texts = test::errors_on_each_rank(2, [](World& world) {
    const auto w = at::zeros({100}).requires_grad_();
    DataParallelBase ddp(test::named({w}), world);
    ddp.register_comm_hook(compress_hook(world, world.rank() == 0 ? at::kHalf : at::kBFloat16));
    w.sum().backward();
  });
  test::expect_on_all(texts, " Half");
  test::expect_on_all(texts, " BFloat16");
}

}  // namespace
}  // namespace lockstep
