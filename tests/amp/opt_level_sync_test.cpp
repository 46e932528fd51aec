// SPDX-License-Identifier: Apache-2.0
// The report that started it: each rank another seed, mixed precision, Adam, 500 steps; nothing may differ between
// ranks, at step 0 and at the end, bit for bit. examples/opt_level_sync shows the same with processes.
#include <gtest/gtest.h>

#include "amp/amp_testing.h"
#include "amp/replicas.h"
#include "lockstep/comm/launch.h"

namespace lockstep::amp {
namespace {

using namespace testing;
using torch::optim::Adam;
using torch::optim::AdamOptions;

/// What may legally happen to weights between initialize and the first step.
enum class Order { wrap, zero_then_wrap, load_then_wrap, wrap_then_load };
constexpr Order kOrders[] = {Order::wrap, Order::zero_then_wrap, Order::load_then_wrap, Order::wrap_then_load};
constexpr OptLevel kEveryLevel[] = {OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3};

/// The report's model, narrower.
torch::nn::Sequential report_net(std::uint64_t seed) {
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 8));
  lockstep::test::fill_parameters(net->parameters(), seed);
  return net;
}

/// A checkpoint that one rank alone reads.
void load_on_rank_0(const World& world, torch::nn::Sequential& net) {
  if (world.rank() == 0) {
    lockstep::test::fill_parameters(net->parameters(), 77);
  }
}

struct Replica {
  torch::nn::Sequential net;
  Adam optimizer;
  Amp amp;
  std::unique_ptr<DistributedDataParallel<torch::nn::Sequential>> ddp;

  Replica(World& world, OptLevel level, Order order)
      : net(report_net(seed_of(world))),
        optimizer(net->parameters(), AdamOptions(1e-3)),
        amp(initialize(*net, optimizer, level)) {
    if (order == Order::zero_then_wrap) {
      amp.zero_grad();
      optimizer.zero_grad();
    } else if (order == Order::load_then_wrap) {
      load_on_rank_0(world, net);
    }
    ddp = std::make_unique<DistributedDataParallel<torch::nn::Sequential>>(net, world);
    if (order == Order::wrap_then_load) {
      load_on_rank_0(world, net);
      ddp->broadcast_now();
    }
  }

  void train(const World& world, int steps) {
    for (int step = 0; step < steps; ++step) {
      const auto x = lockstep::test::random({4, 8}, seed_of(world) * 1000 + static_cast<std::uint64_t>(step));
      amp.scale((amp.forward(*ddp, x) - x).square().mean()).backward();
      EXPECT_FALSE(amp.step(optimizer).skipped()) << step;
    }
  }
};

void expect_replicas_equal(int ranks, OptLevel level, Order order, int steps) {
  SCOPED_TRACE(to_string(level) + ", order " + std::to_string(static_cast<int>(order)));
  run_ranks(ranks, [&](World& world) {
    Replica replica(world, level, order);
    auto& [net, optimizer, amp, ddp] = replica;
    EXPECT_EQ(amp.masters().size(), level == OptLevel::O2 ? 4U : 0U);
    expect_equal_on_all(world, everything(net, optimizer, amp), to_string(level) + " at step 0");
    expect_masters_round_to_parameters(amp);
    const auto before = net->parameters()[0].detach().clone();
    replica.train(world, steps);
    EXPECT_FALSE(at::equal(before, net->parameters()[0])) << "nothing was trained";
    expect_equal_on_all(world, everything(net, optimizer, amp), to_string(level) + " at the end");
    expect_masters_round_to_parameters(amp);
    EXPECT_EQ(ddp->difference(), "");
  });
}

TEST(OptLevelSync, two_ranks_stay_bitwise_equal_for_500_steps_at_every_level) {
  for (const auto level : kEveryLevel) {
    expect_replicas_equal(2, level, Order::wrap, 500);
  }
}

TEST(OptLevelSync, four_ranks_stay_bitwise_equal_for_500_steps_at_every_level) {
  for (const auto level : kEveryLevel) {
    expect_replicas_equal(4, level, Order::wrap, 500);
  }
}

TEST(OptLevelSync, every_legal_order_ends_with_equal_replicas) {
  for (const auto level : kEveryLevel) {
    for (const auto order : kOrders) {
      expect_replicas_equal(2, level, order, 20);
    }
  }
}

TEST(OptLevelSync, the_other_order_is_refused_on_every_rank_and_changes_nothing) {
  for (const auto level : kEveryLevel) {
    run_ranks(2, [&](World& world) {
      auto net = report_net(seed_of(world));
      Adam optimizer(net->parameters(), AdamOptions(1e-3));
      const DistributedDataParallel ddp(net, world);
      EXPECT_TRUE(mentions(error_of([&] { initialize(*net, optimizer, level); }), "initialize first, then wrap"));
      EXPECT_EQ(net->parameters()[0].scalar_type(), at::kFloat);
    });
  }
}

// A model with BatchNorm, whose parameters and statistics stay in fp32 at O2.
TEST(OptLevelSync, batchnorm_stays_equal_too) {
  for (const auto level : kEveryLevel) {
    run_ranks(2, [&](World& world) {
      auto net = net_with_batchnorm(seed_of(world));
      Adam optimizer(net->parameters(), AdamOptions(1e-3));
      auto amp = initialize(*net, optimizer, level);
      DistributedDataParallel ddp(net, world);
      for (int step = 0; step < 100; ++step) {
        const auto x = lockstep::test::random({4, 3}, seed_of(world) * 1000 + static_cast<std::uint64_t>(step));
        amp.scale(amp.forward(ddp, x).square().mean()).backward();
        amp.step(optimizer);
      }
      expect_equal_on_all(world, everything(net, optimizer, amp), to_string(level));
      expect_masters_round_to_parameters(amp);
    });
  }
}

}  // namespace
}  // namespace lockstep::amp
