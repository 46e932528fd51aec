// SPDX-License-Identifier: Apache-2.0
// Faults that other implementations had, each tried.
#include <torch/nn/modules/linear.h>

#include "lockstep/amp/autocast.h"
#include "nn/nn_testing.h"

namespace lockstep {
namespace {

using test::input_error;
using test::mentions;
using torch::nn::BatchNormOptions;

TEST(SyncBatchNormTrials, I1_counts_of_all_ranks_weigh_the_mean_and_the_running_variance) {
  const test::Batch batch{at::tensor({0.f, 2.f, 1.f, 1.f, 1.f, 5.f}).view({6, 1}), test::random({6, 1}, 1), {2, 4}};
  const auto expected = test::reference(BatchNormOptions(1), batch, 2);
  test::run(2, [&](World& world) {
    auto module = test::made_for(world, 1, at::kFloat, 2);
    test::expect_equal_to_joined(world, *module, batch, batch.part_of(batch.input, world.rank()),
                                 batch.part_of(batch.gradient, world.rank()), expected);
    EXPECT_NEAR(module->running_mean.item<double>(), 0.1 * 10 / 6, 1e-6);
    EXPECT_NEAR(module->running_var.item<double>(), 0.9 + 0.1 * (2.5555556 * 6 / 5), 1e-6);
  });
}

TEST(SyncBatchNormTrials, I2_an_empty_batch_on_one_rank_adds_nothing) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    const auto batch = test::make_batch(3, {4, 0}, {2}, dtype, 1);
    const auto expected = test::reference(BatchNormOptions(3), batch, 2);
    test::run(2, [&](World& world) {
      auto module = test::made_for(world, 3, dtype, 2);
      test::expect_equal_to_joined(world, *module, batch, batch.part_of(batch.input, world.rank()),
                                   batch.part_of(batch.gradient, world.rank()), expected);
    });
  }
}

TEST(SyncBatchNormTrials, I2_empty_batches_everywhere_change_nothing) {
  test::run(2, [](World& world) {
    nn::SyncBatchNorm module(3, world);
    const auto results = test::results_of(*module, at::zeros({0, 3, 2}), at::zeros({0, 3, 2}));
    EXPECT_EQ(results.output.numel(), 0);
    EXPECT_EQ(results.input_grad.sizes(), (test::Sizes{0, 3, 2}));
    EXPECT_TRUE(at::equal(results.weight_grad, at::zeros({3})));
    EXPECT_TRUE(at::equal(results.bias_grad, at::zeros({3})));
    EXPECT_TRUE(at::equal(results.running_mean, at::zeros({3})));
    EXPECT_TRUE(at::equal(results.running_var, at::ones({3})));
    EXPECT_EQ(results.batches.item<std::int64_t>(), 0);
  });
}

at::Tensor permuted_net(const std::function<at::Tensor(const at::Tensor&)>& norm, const at::Tensor& x,
                        const at::Tensor& weight) {
  return at::matmul(norm(x.permute({0, 3, 1, 2})).permute({0, 2, 3, 1}), weight);
}

TEST(SyncBatchNormTrials, I4_permuted_inputs_and_gradients_of_large_maps) {
  for (const std::int64_t channels : {3, 65, 130}) {
    const auto joined = test::random({2, 100, 100, channels}, 1);
    const auto weight = test::random({channels, 2}, 2).to(at::kDouble), dy = test::random({2, 100, 100, 2}, 3);
    torch::nn::BatchNorm2d plain(channels);
    plain->to(at::kDouble);
    const auto x = joined.to(at::kDouble).requires_grad_();
    permuted_net([&](const auto& t) { return plain->forward(t); }, x, weight).backward(dy.to(at::kDouble));
    test::run(2, [&](World& world) {
      nn::SyncBatchNorm module(channels, world);
      const auto mine = joined.narrow(0, world.rank(), 1).clone().requires_grad_();
      permuted_net([&](const auto& t) { return module->forward(t); }, mine, weight.to(at::kFloat))
          .backward(dy.narrow(0, world.rank(), 1));
      test::expect_close(mine.grad(), x.grad().narrow(0, world.rank(), 1), {1e-4, 1e-4}, "input's gradient");
      world.all_reduce(module->weight.grad()).wait();
      test::expect_close(module->weight.grad(), plain->weight.grad(), {1e-4, 2e-2}, "weight's gradient");
    });
  }
}

TEST(SyncBatchNormTrials, I5_evaluation_is_silent_on_one_rank_alone) {
  test::run(2, [](World& world) {
    nn::SyncBatchNorm module(3, world);
    nn::SyncBatchNorm untracked(nn::SyncBatchNormOptions(3).track_running_stats(false), world);
    const auto before = world.collectives_issued();
    if (world.rank() == 0) {
      module->eval();
      untracked->eval();
      const auto x = test::random({4, 3}, 1).requires_grad_();
      (module->forward(x) + untracked->forward(x)).sum().backward();
    }
    EXPECT_EQ(world.collectives_issued(), before);
    world.barrier();
  });
}

TEST(SyncBatchNormTrials, I5_training_issues_one_collective_forward_and_one_backward) {
  test::run(3, [](World& world) {
    nn::SyncBatchNorm module(3, world);
    const auto x = test::random({2, 3, 4}, 1).requires_grad_();
    const auto before = world.collectives_issued();
    const auto y = module->forward(x);
    EXPECT_EQ(world.collectives_issued() - before, 1U);
    y.sum().backward();
    EXPECT_EQ(world.collectives_issued() - before, 2U);
    module->forward(x.detach()).sum().backward();  // only the weights' gradients are wanted
    EXPECT_EQ(world.collectives_issued() - before, 3U);
  });
}

TEST(SyncBatchNormTrials, I9_an_overflow_on_one_rank_leaves_the_running_statistics_of_all) {
  for (const bool skip : {true, false}) {
    test::run(2, [&](World& world) {
      nn::SyncBatchNorm norm(nn::SyncBatchNormOptions(4).skip_non_finite(skip), world);
      torch::nn::Linear linear(3, 4);
      test::fill_parameters(linear->parameters(), 1);
      for (int step = 0; step < 21; ++step) {
        const amp::autocast guard(at::kCPU, at::kHalf);
        auto x = test::random({4, 3}, static_cast<std::uint64_t>(100 * step + world.rank()));
        if (step == 0 && world.rank() == 0) {
          x.mul_(1e6);
        }
        const auto y = norm->forward(linear->forward(x));
        EXPECT_EQ(y.scalar_type(), at::kHalf);
        EXPECT_EQ(at::isfinite(y).all().item<bool>(), step > 0);
      }
      const auto kept = at::isfinite(norm->running_mean).all() & at::isfinite(norm->running_var).all();
      EXPECT_EQ(kept.item<bool>(), skip);
      EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), skip ? 20 : 21);
      test::expect_same_bits(world, at::cat({norm->running_mean, norm->running_var}), "running statistics");
    });
  }
}

TEST(SyncBatchNormTrials, one_value_on_all_ranks_together_is_an_error_on_each_and_harms_nothing) {
  test::run(3, [](World& world) {
    nn::SyncBatchNorm module(2, world);
    const auto rows = [&](std::int64_t n) { return test::random({n, 2}, 1); };
    const auto error = input_error([&] { module->forward(rows(world.rank() == 1 ? 1 : 0)); });
    EXPECT_EQ(error,
              "[nn.SyncBatchNorm] 'SyncBatchNorm' has one value a channel on all ranks together; got 1, expected 2 or "
              "more; a single value has no variance: use larger batches, or eval()");
    EXPECT_EQ(module->num_batches_tracked.item<std::int64_t>(), 0);
    EXPECT_TRUE(at::isfinite(module->forward(rows(1))).all().item<bool>());  // one value on each rank is enough
    EXPECT_EQ(module->num_batches_tracked.item<std::int64_t>(), 1);
  });
}

TEST(SyncBatchNormTrials, a_bad_input_on_one_rank_ends_all_with_its_words) {
  const auto failure = test::failure_of(2, [](World& world) {
    nn::SyncBatchNorm module(2, world);
    module->forward(test::random({3, world.rank() == 1 ? 5 : 2}, 1));
  });
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(mentions(failure->what(), "got sizes [3, 5], expected (N, 2, ...)")) << failure->what();
}

TEST(SyncBatchNormTrials, ranks_that_run_other_modules_are_told_so) {
  const auto failure = test::failure_of(2, [](World& world) {
    nn::SyncBatchNorm module(2, world);
    module->set_world(world, world.rank() == 0 ? "first" : "second");
    module->forward(test::random({3, 2}, 1));
  });
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(mentions(failure->what(), "'first'") || mentions(failure->what(), "'second'")) << failure->what();
}

}  // namespace
}  // namespace lockstep
