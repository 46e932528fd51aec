// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/comm_hook.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::mlp;
using test::random;

using MakeHook = std::function<CommHook(World&)>;

/// Gradients of one step with the hook, on rank 0, and the plain average, computed in one process.
std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> gradients(int ranks, at::ScalarType dtype,
                                                                      const MakeHook& make,
                                                                      DataParallelOptions options = {}) {
  std::vector<at::Tensor> hooked;
  auto alone = mlp(1, 32, 32, 32);
  alone->to(dtype);
  alone->forward(random({4 * ranks, 32}, 2).to(dtype)).square().mean().backward();
  run_ranks(ranks, [&](World& world) {
    auto net = mlp(1, 32, 32, 32);
    net->to(dtype);
    DistributedDataParallel ddp(net, world, options);
    ddp.register_comm_hook(make(world));
    ddp(test::share(random({4 * ranks, 32}, 2).to(dtype), world.rank(), 4)).square().mean().backward();
    if (world.rank() == 0) {
      for (const auto& p : net->parameters()) {
        hooked.push_back(p.grad());
      }
    }
  });
  std::vector<at::Tensor> plain;
  for (const auto& p : alone->parameters()) {
    plain.push_back(p.grad());
  }
  return {hooked, plain};
}

void expect_close(const std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>& both, double relative) {
  for (std::size_t i = 0; i < both.first.size(); ++i) {
    const auto off = (both.first[i] - both.second[i]).abs().max().item<double>();
    EXPECT_LE(off, relative * both.second[i].abs().max().item<double>()) << "parameter " << i;
  }
}

TEST(CommHook, test_ddp_comm_hook_allreduce_hook_equals_default) {
  expect_close(gradients(2, at::kFloat, [](World& w) { return all_reduce_hook(w); }), 1e-6);
}

TEST(CommHook, a_predivide_factor_changes_nothing_but_the_rounding) {
  for (const double factor : {1.0, 2.0, 3.0}) {
    expect_close(
        gradients(3, at::kFloat, [](World& w) { return all_reduce_hook(w); }, {.gradient_predivide_factor = factor}),
        1e-6);
  }
}

TEST(CommHook, test_default_ddp_comm_hooks_16_bit_wire) {
  // One rounding to the wire and one per addition: 2^-11 and 2^-8 relative each.
  expect_close(gradients(2, at::kFloat, [](World& w) { return compress_hook(w, at::kHalf); }), 3 * 0x1p-11);
  expect_close(gradients(2, at::kFloat, [](World& w) { return compress_hook(w, at::kBFloat16); }), 3 * 0x1p-8);
}

/// The wire really has 16 bits: a value that half cannot hold becomes infinite.
TEST(CommHook, the_wire_is_really_narrow) {
  run_ranks(2, [](World& world) {
    auto w = at::zeros({1}).requires_grad_();
    DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world);
    ddp.register_comm_hook(compress_hook(world, at::kHalf));
    (w * 1e6).sum().backward();
    EXPECT_TRUE(std::isinf(w.grad().item<float>()));
  });
}

TEST(CommHook, float_reduction_rounds_once) {
  run_ranks(4, [](World& world) {
    auto w = at::zeros({1}, at::kBFloat16).requires_grad_();
    DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world, {.gradient_predivide_factor = 1});
    ddp.register_comm_hook(float_reduction_hook(world));
    // 256 + 1 + 1 + 1 = 259 in fp32, a quarter of it rounds to 64.75 -> 64.5 or 65; bfloat16 sums stick at 256 -> 64.
    (w * (world.rank() == 0 ? 256.0 : 1.0)).sum().backward();
    EXPECT_EQ(w.grad().item<float>(), at::tensor({64.75F}).to(at::kBFloat16).item<float>());
  });
}

TEST(CommHook, test_ddp_comm_hook_register_just_once_and_early) {
  World world;
  auto net = mlp(1);
  DistributedDataParallel ddp(net, world);
  EXPECT_THROW(ddp.register_comm_hook(nullptr), InputError);
  ddp.register_comm_hook(all_reduce_hook(world));
  EXPECT_THROW(ddp.register_comm_hook(all_reduce_hook(world)), InputError);
  auto late = mlp(1);
  DistributedDataParallel other(late, world);
  other(random({1, 6}, 1)).sum().backward();
  EXPECT_THROW(other.register_comm_hook(all_reduce_hook(world)), InputError);
}

TEST(CommHook, a_users_hook_sees_live_named_gradients) {
  run_ranks(2, [](World& world) {
    auto net = mlp(1);
    DistributedDataParallel ddp(net, world);
    std::vector<std::string> names;
    ddp.register_comm_hook([&](const GradientBucket& bucket) -> std::function<void()> {
      names = bucket.names;
      EXPECT_TRUE(bucket.is_last);
      return [bucket] { bucket.gradients[0].fill_(7); };
    });
    ddp(random({1, 6}, 1)).sum().backward();
    EXPECT_EQ(names.front(), "4.bias");
    EXPECT_EQ(net->parameters().back().grad()[0].item<float>(), 7);
  });
}

TEST(CommHook, test_powerSGD_with_full_rank_is_exact_and_before_its_start_too) {
  PowerSgdOptions full{.matrix_approximation_rank = 32, .start_step = 0, .min_compression_rate = 0.01};
  expect_close(gradients(2, at::kFloat, [&](World& w) { return power_sgd_hook(w, full); }), 1e-4);
  expect_close(gradients(2, at::kFloat, [&](World& w) { return power_sgd_hook(w, {}); }), 1e-6);
}

/// Error feedback: what one step leaves out arrives later, so the sum over steps of a constant gradient converges.
TEST(CommHook, powerSGD_error_feedback_sends_everything_in_the_end) {
  for (const bool warm : {false, true}) {
    run_ranks(2, [&](World& world) {
      auto w = at::zeros({16, 12}).requires_grad_();
      DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world);
      ddp.register_comm_hook(
          power_sgd_hook(world, {.matrix_approximation_rank = 2, .start_step = 0, .warm_start = warm}));
      const auto mine = random({16, 12}, 5 + static_cast<std::uint64_t>(world.rank()));
      const auto average = (random({16, 12}, 5) + random({16, 12}, 6)) / 2;
      auto sum = at::zeros({16, 12});
      constexpr int kSteps = 60;
      for (int step = 0; step < kSteps; ++step) {
        w.mutable_grad() = at::Tensor();
        (w * mine).sum().backward();
        sum += w.grad();
      }
      const auto off = ((sum / kSteps) - average).norm() / average.norm();
      EXPECT_LT(off.item<float>(), 0.15);
      EXPECT_EQ(world.all_gather_text(std::to_string(sum.sum().item<float>()))[0],
                std::to_string(sum.sum().item<float>()));
    });
  }
}

TEST(CommHook, local_sgd_parts_replicas_and_the_averager_joins_them) {
  run_ranks(4, [](World& world) {
    const auto pair = world.split(world.rank() / 2);
    auto w = at::zeros({1}).requires_grad_();
    DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world);
    ddp.register_comm_hook(local_sgd_hook(world, pair, 1));
    torch::optim::SGD sgd({w}, torch::optim::SGDOptions(1));
    PeriodicModelAverager averager(world, 2, 1);
    for (int step = 0; step < 4; ++step) {
      sgd.zero_grad();
      (w * world.rank()).sum().backward();
      EXPECT_EQ(w.grad().item<float>(), step == 0 ? 1.5 : (world.rank() / 2 == 0 ? 0.5 : 2.5)) << step;
      sgd.step();
      const bool averaged = averager.average_parameters({w});
      EXPECT_EQ(averaged, step == 1 || step == 3);
      EXPECT_EQ(ddp.difference().empty(), averaged || step == 0) << step;
    }
  });
}

/// A loss scaler leaves the step out; what PowerSGD remembers must not keep the infinity for all later ones.
TEST(CommHook, powerSGD_forgets_an_overflow) {
  for (const bool warm : {false, true}) {
    run_ranks(2, [&](World& world) {
      auto w = at::zeros({8, 6}).requires_grad_();
      DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world);
      ddp.register_comm_hook(power_sgd_hook(
          world, {.matrix_approximation_rank = 1, .start_step = 0, .min_compression_rate = 0.1, .warm_start = warm}));
      for (int step = 0; step < 6; ++step) {
        w.mutable_grad() = at::Tensor();
        const bool overflows = (step == 0 || step == 3) && world.rank() == 1;
        (w * random({8, 6}, static_cast<std::uint64_t>(step)) * (overflows ? INFINITY : 1.0)).sum().backward();
        EXPECT_EQ(w.grad().isfinite().all().item<bool>(), step != 0 && step != 3) << step;
      }
    });
  }
}

}  // namespace
}  // namespace lockstep
