// SPDX-License-Identifier: Apache-2.0
// After a resync, ranks are equal in everything and train on as the healthy ones would have.
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include "replica/training.h"

namespace lockstep {
namespace {

using test::run;
using test::Training;

TEST(Resync, all_kinds_at_once_come_from_the_healthy_majority) {
  run(3, [](World& world) {
    Training harmed(world, {.on_mismatch = OnMismatch::Resync});
    Training healthy(world, {});
    for (int step = 0; step < 3; ++step) {
      harmed.train();
      healthy.train();
    }
    if (world.rank() == 0) {
      for (const auto& victim : test::victims_of(harmed)) {
        test::flip(victim, 0, 4);
      }
    }
    EXPECT_NO_THROW(harmed.check_.step());
    const auto& report = *harmed.check_.last_report();
    EXPECT_TRUE(report.resynced);
    EXPECT_EQ(report.healthiest, 1);
    EXPECT_TRUE(test::mentions(report.text(), "everything was copied from rank 1")) << report.text();
    for (int step = 0; step < 3; ++step) {
      harmed.train();
      healthy.train();
      EXPECT_NO_THROW(harmed.check_.step());
    }
    EXPECT_EQ(harmed.check_.last_report()->step, 1) << harmed.check_.last_report()->text();
    EXPECT_EQ(harmed.check_.digest(), healthy.check_.digest());
  });
}

TEST(Resync, is_done_once_and_never_for_equal_ranks) {
  run(2, [](World& world) {
    auto t = at::full({3}, world.rank());
    ReplicaCheck check(world, {.on_mismatch = OnMismatch::Resync});
    check.cover("t", [&] { return std::vector<at::Tensor>{t}; });
    check.step();
    EXPECT_TRUE(check.last_report()->resynced);
    EXPECT_TRUE(t.eq(0).all().item<bool>());
    check.step();
    EXPECT_EQ(check.last_report()->step, 1);
  });
}

TEST(Resync, that_does_not_help_is_an_error) {
  run(2, [](World& world) {
    ReplicaCheck check(world, {.on_mismatch = OnMismatch::Resync});
    check.cover("t", [&] { return std::vector<at::Tensor>{at::full({3}, world.rank())}; });
    EXPECT_THROW(check.step(), ReplicaError);
    EXPECT_FALSE(check.last_report()->resynced);
  });
}

template <class Optimizer, class Options>
void expect_resync(const World& world, Options options) {
  auto net = test::mlp(1);
  Optimizer optimizer(net->parameters(), options);
  DistributedDataParallel ddp(net, world);
  ReplicaCheck check(world, {.on_mismatch = OnMismatch::Resync});
  check.attach(ddp).attach(optimizer);
  for (int step = 0; step < 2; ++step) {
    // The ranks' states part: the gradients are not averaged, and rank 2 takes a step more.
    const auto quiet = ddp.no_sync();
    for (int more = 0; more < (world.rank() == 2 ? 2 : 1); ++more) {
      ddp.forward(test::random({2, 6}, static_cast<std::uint64_t>(10 * step + world.rank()))).square().sum().backward();
      optimizer.step();
    }
  }
  EXPECT_NO_THROW(check.step());
  EXPECT_TRUE(check.last_report()->resynced);
  check.step();
  EXPECT_EQ(check.last_report()->step, 1);
}

TEST(Resync, knows_every_optimizer_of_libtorch_and_lockstep) {
  run(3, [](World& world) {
    expect_resync<torch::optim::SGD>(world, torch::optim::SGDOptions(0.1).momentum(0.9));
    expect_resync<torch::optim::AdamW>(world, torch::optim::AdamWOptions(0.1).amsgrad(true));
    expect_resync<torch::optim::RMSprop>(world, torch::optim::RMSpropOptions(0.1).centered(true).momentum(0.5));
    expect_resync<torch::optim::Adagrad>(world, torch::optim::AdagradOptions(0.1));
    expect_resync<optim::AdamW>(world, torch::optim::AdamWOptions(0.1).amsgrad(true));
  });
}

}  // namespace
}  // namespace lockstep
