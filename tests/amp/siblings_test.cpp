// SPDX-License-Identifier: Apache-2.0
// Replicas in mixed precision stay equal. Each way in which they are known to part, elsewhere, is impossible here,
// refused, or found by the digest. Ranks start from different weights throughout: equal seeds hide every such fault.
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "amp/amp_testing.h"
#include "amp/replicas.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/opt_level.h"
#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"

namespace lockstep::amp {
namespace {

using namespace testing;
using at::Tensor;
using torch::optim::Adam;
using torch::optim::SGD;

const std::vector<OptLevel> kLevels{OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3};

TEST(Siblings, S1_masters_made_before_the_broadcast_follow_it) {
  run_ranks(2, [](World& world) {
    auto net = net_with_batchnorm(seed_of(world));
    Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
    auto amp = initialize(*net, optimizer, OptLevel::O2);
    amp.zero_grad();
    EXPECT_EQ(amp.masters().size(), 4U);  // they exist, with this rank's own values
    DistributedDataParallel ddp(net, world);
    amp.scale(amp.forward(ddp, test::random({4, 3}, seed_of(world))).square().mean()).backward();
    amp.step(optimizer);
    expect_equal_on_all(world, everything(net, optimizer, amp), "after the first step");
  });
}

TEST(Siblings, S2_weights_loaded_on_one_rank_are_found_and_a_broadcast_reaches_the_masters) {
  run_ranks(2, [](World& world) {
    auto net = net_with_batchnorm(seed_of(world));
    Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.0));
    auto amp = initialize(*net, optimizer, OptLevel::O2);
    DistributedDataParallel ddp(net, world);
    if (world.rank() == 0) {
      net->parameters()[0].detach().fill_(5);
    }
    EXPECT_TRUE(mentions(ddp.difference(), "0.weight")) << ddp.difference();
    ddp.broadcast_now();
    EXPECT_EQ(ddp.difference(), "");
    amp.scale(amp.forward(ddp, test::random({4, 3}, 1)).square().mean()).backward();
    amp.step(optimizer);  // with a rate of 0 the masters are written back as they are
    EXPECT_TRUE(at::equal(net->parameters()[0], at::full_like(net->parameters()[0], 5)));
    expect_equal_on_all(world, everything(net, optimizer, amp), "after the step");
  });
}

TEST(Siblings, S3_a_parameter_replaced_after_initialize_is_refused_by_name) {
  struct Outer : torch::nn::Module {
    torch::nn::Linear inner = register_module("inner", torch::nn::Linear(3, 2));
    Tensor forward(const Tensor& x) { return inner(x); }
  } net;
  SGD optimizer(net.parameters(), 0.1);
  auto amp = initialize(net, optimizer, OptLevel::O2);
  amp.scale(amp.forward(net, at::ones({1, 3})).sum()).backward();
  net.replace_module("inner", torch::nn::Linear(3, 2).ptr());
  EXPECT_TRUE(mentions(error_of([&] { amp.step(optimizer); }),
                       "parameter 'inner.weight' was replaced by another tensor after initialize"));
}

TEST(Siblings, S4_a_cast_or_a_move_after_initialize_is_refused_by_name) {
  torch::nn::Linear net(3, 2);
  SGD optimizer(net->parameters(), 0.1);
  auto amp = initialize(*net, optimizer, OptLevel::O2);
  amp.scale(amp.forward(net, at::ones({1, 3})).sum()).backward();
  net->to(at::kFloat);
  EXPECT_TRUE(mentions(error_of([&] { amp.step(optimizer); }),
                       "parameter 'weight' was cast or moved after initialize; got Float on cpu, expected BFloat16"));
}

TEST(Siblings, S5_running_statistics_are_fp32_and_equal_on_all_ranks) {
  run_ranks(2, [](World& world) {
    auto net = net_with_batchnorm(seed_of(world));
    SGD optimizer(net->parameters(), 0.1);
    auto amp = initialize(*net, optimizer, OptLevel::O2, {.low_precision = at::kHalf});
    DistributedDataParallel ddp(net, world);
    for (int step = 0; step < 3; ++step) {
      // The variance of these inputs does not fit fp16.
      const auto x = test::random({4, 3}, seed_of(world)) * 1000;
      amp.scale(amp.forward(ddp, x).square().mean()).backward();
      amp.step(optimizer);
    }
    std::string bytes;
    for (const auto& buffer : net->buffers()) {
      EXPECT_TRUE(!buffer.is_floating_point() || buffer.scalar_type() == at::kFloat);
      EXPECT_TRUE(buffer.isfinite().all().item<bool>());
      bytes += bytes_of(buffer);
    }
    expect_equal_on_all(world, bytes, "buffers");
  });
}

TEST(Siblings, S6_an_overflow_in_a_local_micro_batch_is_judged_after_the_reduction) {
  for (const auto level : {OptLevel::O1, OptLevel::O2}) {
    run_ranks(2, [&](World& world) {
      Scalar s(world, level);
      {
        const auto quiet = s.ddp.no_sync();
        s.backward(world.rank() == 1 ? kInf : 1.f);
      }
      s.backward(1);
      EXPECT_FALSE(s.step());
      EXPECT_EQ(s.amp.loss_scale(), 32768);
      {
        const auto quiet = s.ddp.no_sync();
        s.backward(world.rank() == 1 ? 0.5f : 0.25f);
      }
      s.backward(world.rank() == 1 ? 0.5f : 0.25f);
      EXPECT_TRUE(s.step());
      EXPECT_EQ(s.value(), 0.25f);  // 1 - (2 * 0.5 + 2 * 0.25) / 2
    });
  }
}

TEST(Siblings, S7_another_rate_or_scale_on_one_rank_is_found_after_the_step) {
  for (const bool rate : {true, false}) {
    run_ranks(2, [&](World& world) {
      Scalar s(world, OptLevel::O2);
      if (world.rank() == 1 && rate) {
        s.optimizer.param_groups()[0].options().set_lr(0.5);
      } else if (world.rank() == 1) {
        auto state = s.amp.state_dict();
        state["loss_scaler0.scale"].fill_(1024);
        s.amp.load_state_dict(state);
      }
      s.backward(1);
      s.step();
      EXPECT_TRUE(mentions(s.ddp.difference(), "w")) << rate;
    });
  }
}

// Generators that differ are meant to (dropout, data): they must not reach what the replicas share.
TEST(Siblings, S8_dropout_of_other_seeds_on_each_rank_leaves_replicas_equal) {
  run_ranks(2, [](World& world) {
    auto net = net_with_batchnorm(seed_of(world));
    Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
    auto amp = initialize(*net, optimizer, OptLevel::O2);
    DistributedDataParallel ddp(net, world);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed_of(world));
    std::string dropped;
    for (int step = 0; step < 20; ++step) {
      const auto mask = at::rand({4, 3}, generator) < 0.5;
      dropped += bytes_of(mask);
      amp.scale(amp.forward(ddp, at::ones({4, 3}) * mask).square().mean()).backward();
      amp.step(optimizer);
    }
    const auto masks = world.all_gather_text(dropped);
    EXPECT_FALSE(masks[0] == masks[1]) << "ranks must differ, or this shows nothing";
    expect_equal_on_all(world, everything(net, optimizer, amp), "after dropout");
    EXPECT_EQ(ddp.difference(), "");
  });
}

TEST(Siblings, S9_another_order_of_parameters_is_refused_on_every_rank) {
  run_ranks(2, [](World& world) {
    const bool first = world.rank() == 0;
    torch::nn::Sequential net(torch::nn::Linear(first ? 3 : 2, 2), torch::nn::Linear(2, first ? 2 : 3));
    SGD optimizer(net->parameters(), 0.1);
    const auto amp = initialize(*net, optimizer, OptLevel::O2);
    EXPECT_TRUE(mentions(error_of([&] { const DistributedDataParallel ddp(net, world); }), "0.weight"));
  });
}

TEST(Siblings, S10_an_overflow_in_an_ignored_parameter_counts_on_all_ranks_of_the_world) {
  struct Net : torch::nn::Module {
    Tensor shared = register_parameter("shared", at::ones({1})), own = register_parameter("own", at::ones({1}));
  };
  run_ranks(2, [](World& world) {
    const auto net = std::make_shared<Net>();
    SGD optimizer(net->parameters(), 1.0);
    auto amp = initialize(*net, optimizer, OptLevel::O2, {.world = world});
    const DataParallelBase ddp(ddp::tensors_of(*net), world, {.ignore = {"own"}});
    const float gradient = world.rank() == 1 ? kInf : 1.f;
    amp.scale((net->shared * 1 + net->own * gradient).sum()).backward();
    EXPECT_TRUE(amp.step(optimizer).skipped());
    EXPECT_EQ(amp.loss_scale(), 32768);
    EXPECT_EQ(net->shared.item<float>(), 1);
  });
}

TEST(Siblings, S11_a_static_scale_lets_no_inf_into_the_weights) {
  for (const auto level : kLevels) {
    run_ranks(2, [&](World& world) {
      Scalar s(world, level, {.loss_scale = 128.0, .max_skips_in_a_row = 3});
      s.backward(world.rank() == 1 ? kInf : 1.f);
      EXPECT_FALSE(s.step());
      EXPECT_EQ(s.value(), 1);
      EXPECT_EQ(s.amp.loss_scale(), 128);
      s.backward(kInf);
      s.step();
      s.backward(kInf);
      EXPECT_THROW(s.step(), Error);
    });
  }
}

TEST(Siblings, S12_gradients_are_reduced_when_backward_returns) {
  run_ranks(2, [](World& world) {
    Scalar s(world, OptLevel::O1);
    for (int step = 0; step < 20; ++step) {
      s.backward(world.rank() == 0 ? 1.f : 3.f);
      EXPECT_EQ(s.net->w.grad().item<float>(), 2 * 65536.f);
      s.amp.zero_grad();
    }
  });
}

TEST(Siblings, initialize_after_the_wrap_names_the_right_order) {
  run_ranks(2, [](World& world) {
    torch::nn::Linear net(3, 2);
    SGD optimizer(net->parameters(), 0.1);
    const DistributedDataParallel ddp(net, world);
    EXPECT_TRUE(mentions(error_of([&] { initialize(*net, optimizer, OptLevel::O2); }), "initialize first, then wrap"));
  });
}

}  // namespace
}  // namespace lockstep::amp
