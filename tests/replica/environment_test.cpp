// SPDX-License-Identifier: Apache-2.0
// LOCKSTEP_CHECK_EVERY turns the check on in a program that knows nothing of it.
#include <cstdlib>

#include "lockstep/step/train_step.h"
#include "replica/training.h"

namespace lockstep {
namespace {

using test::run;

class Every {
 public:
  explicit Every(const char* value) { ::setenv("LOCKSTEP_CHECK_EVERY", value, 1); }
  ~Every() { ::unsetenv("LOCKSTEP_CHECK_EVERY"); }
};

void backward(DistributedDataParallel<torch::nn::Sequential>& ddp) {
  ddp.forward(at::ones({2, 5})).sum().backward();
}

TEST(CheckEvery, watches_every_nth_reduced_backward_without_a_change_of_code) {
  const Every every("2");
  run(2, [](World& world) {
    auto net = test::model_with_buffers(1);
    DistributedDataParallel ddp(net, world);
    if (world.rank() == 1) {
      test::flip_bit(net->parameters()[0], 3, 1);
    }
    EXPECT_NO_THROW(backward(ddp));
    try {
      backward(ddp);
      ADD_FAILURE() << "the difference was missed";
    } catch (const ReplicaError& error) {
      EXPECT_TRUE(test::mentions(error.what(), "at step 2: parameter 0.weight")) << error.what();
    }
  });
}

TEST(CheckEvery, leaves_per_rank_buffers_and_quiet_passes_alone) {
  const Every every("1");
  run(2, [](World& world) {
    auto net = test::model_with_buffers(1);
    DistributedDataParallel ddp(net, world, {.broadcast_buffers = false});
    for (int step = 0; step < 3; ++step) {
      {
        const auto quiet = ddp.no_sync();
        EXPECT_NO_THROW(ddp.forward(test::random({2, 5}, static_cast<std::uint64_t>(world.rank()))).sum().backward());
      }
      EXPECT_NO_THROW(backward(ddp));
    }
  });
}

/// So ranks of which some replay a captured step and some do not compare the same weights.
TEST(CheckEvery, watches_a_train_step_after_its_update_and_once) {
  const Every every("1");
  run(3, [](World& world) {
    auto net = test::model_with_buffers(1);
    DistributedDataParallel ddp(net, world);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    TrainStep step({.optimizer = optimizer, .ddp = &ddp},
                   [&](const TrainStep::Inputs& inputs) { return ddp.forward(inputs[0]).sum(); }, {.accumulate = 2});
    const auto x = test::random({2, 5}, static_cast<std::uint64_t>(world.rank()));
    for (int window = 0; window < 2; ++window) {
      EXPECT_NO_THROW(step({x}));
      EXPECT_NO_THROW(step({x}));
    }
    if (world.rank() == 2) {
      optimizer.param_groups()[0].options().set_lr(0.2);
    }
    EXPECT_NO_THROW(step({x}));
    try {
      step({x});
      ADD_FAILURE() << "an update that differs was missed";
    } catch (const ReplicaError& error) {
      EXPECT_TRUE(test::mentions(error.what(), "at step 3: parameter 0.weight")) << error.what();
      EXPECT_EQ(error.report().differences[0].ranks, std::vector<int>{2});
    }
  });
}

TEST(CheckEvery, wins_over_the_options_and_checks_once) {
  const Every every("3");
  run(2, [](World& world) {
    auto net = test::model_with_buffers(1);
    DistributedDataParallel ddp(net, world);
    ReplicaCheck check(world, {.every = 1});
    check.attach(ddp);
    if (world.rank() == 1) {
      test::flip_bit(net->parameters()[0], 3, 1);
    }
    for (int step = 1; step < 3; ++step) {
      EXPECT_NO_THROW(backward(ddp));
      EXPECT_NO_THROW(check.step());
    }
    EXPECT_NO_THROW(backward(ddp));
    EXPECT_THROW(check.step(), ReplicaError);
  });
}

TEST(CheckEvery, of_nonsense_is_refused_on_every_rank) {
  for (const auto* value : {"often", "-1", "1.5"}) {
    const Every every(value);
    EXPECT_THROW(ReplicaCheck{World()}, InputError) << value;
  }
}

}  // namespace
}  // namespace lockstep
