// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm among the other parts: DistributedDataParallel, no_sync, opt levels, threads, the autograd engine.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <thread>

#include "lockstep/amp/opt_level.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/optim/sgd.h"
#include "nn/nn_testing.h"

namespace lockstep {
namespace {

using nn::convert_sync_batch_norm;
using test::input_error;
using test::mentions;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;

Sequential net_of(std::uint64_t seed) {
  Sequential net(Linear(3, 4), BatchNorm1d(4), Linear(4, 4), BatchNorm1d(4), Linear(4, 2));
  test::fill_parameters(net->parameters(), seed);
  return net;
}

at::Tensor statistics_of(const Sequential& net) {
  std::vector<at::Tensor> all;
  for (const auto& buffer : net->buffers()) {
    all.push_back(buffer.to(at::kDouble).view(-1));
  }
  return at::cat(all);
}

World group_of(const Sequential& net) {
  return std::dynamic_pointer_cast<nn::SyncBatchNormImpl>(net->ptr(1))->world();
}

TEST(SyncBatchNormTraining, with_data_parallel_equals_one_process_on_the_joined_batch) {
  const auto joined = test::random({12, 3}, 3);
  auto whole = net_of(1);
  torch::optim::SGD optimizer(whole->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    whole->forward(joined + step).square().mean().backward();
    optimizer.step();
  }
  for (const int ranks : {2, 3, 4}) {
    test::run(ranks, [&](World& world) {
      auto net = net_of(static_cast<std::uint64_t>(1 + world.rank()));
      convert_sync_batch_norm(net, world);
      torch::optim::SGD own(net->parameters(), 0.1);
      DistributedDataParallel ddp(net, world, {.bucket_cap_mb = 1e-5, .first_bucket_mb = 1e-5});
      for (int step = 0; step < 5; ++step) {
        own.zero_grad();
        ddp.forward(test::share(joined, world.rank(), 12 / ranks) + step).square().mean().backward();
        own.step();
      }
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        test::expect_close(net->parameters()[i], whole->parameters()[i], {1e-4, 1e-5}, core::str("parameter ", i));
      }
      test::expect_close(statistics_of(net), statistics_of(whole), {1e-4, 1e-5}, "buffers");
      EXPECT_EQ(ddp.difference(), "");
    });
  }
}

TEST(SyncBatchNormTraining, no_sync_keeps_gradients_but_not_statistics_on_the_rank) {
  test::run(2, [](World& world) {
    auto net = net_of(1);
    convert_sync_batch_norm(net, world);
    DistributedDataParallel ddp(net, world);
    const auto group = group_of(net);
    const auto gradients = world.collectives_issued(), statistics = group.collectives_issued();
    {
      const auto quiet = ddp.no_sync();
      ddp.forward(test::random({3, 3}, 10 + static_cast<std::uint64_t>(world.rank()))).sum().backward();
    }
    EXPECT_EQ(world.collectives_issued(), gradients);
    EXPECT_EQ(group.collectives_issued() - statistics, 4U);  // two modules, forward and backward
    test::expect_same_bits(world, statistics_of(net), "running statistics");
  });
}

/// A branch that only some ranks use moves the buckets' reductions against those of statistics.
struct Branched : torch::nn::Module {
  Linear first = register_module("first", Linear(3, 4));
  nn::SyncBatchNorm norm = register_module("norm", nn::SyncBatchNorm(4));
  Linear last = register_module("last", Linear(4, 2));
  Linear branch = register_module("branch", Linear(3, 2));
  at::Tensor forward(const at::Tensor& x, bool use_branch) {
    const auto y = last->forward(norm->forward(first->forward(x)));
    return use_branch ? y + branch->forward(x) : y;
  }
};

TEST(SyncBatchNormTraining, reductions_of_gradients_may_overtake_those_of_statistics) {
  test::run(3, [](World& world) {
    auto net = std::make_shared<Branched>();
    convert_sync_batch_norm(*net, world);
    DistributedDataParallel ddp(net, world,
                                {.unused = UnusedParameters::Detect, .bucket_cap_mb = 1e-5, .first_bucket_mb = 1e-5});
    for (int step = 0; step < 6; ++step) {
      ddp->zero_grad();
      ddp.forward(test::random({4, 3}, 7), (world.rank() + step) % 3 == 0).square().sum().backward();
    }
    EXPECT_EQ(ddp.difference(), "");
    test::expect_same_bits(world, net->first->weight.grad(), "gradient");
  });
}

TEST(SyncBatchNormTraining, buffer_broadcast_and_two_forwards_before_one_backward) {
  test::run(2, [](World& world) {
    auto net = net_of(1);
    convert_sync_batch_norm(net, world);
    DistributedDataParallel ddp(net, world);
    const auto x = [&](int i) { return test::random({3, 3}, static_cast<std::uint64_t>(10 * i + world.rank())); };
    (ddp.forward(x(1)) + ddp.forward(x(2))).square().sum().backward();
    ddp.forward(x(3)).sum().backward();
    EXPECT_EQ(ddp.difference(), "");
    EXPECT_EQ(net->buffers()[2].item<std::int64_t>(), 3);
  });
}

TEST(SyncBatchNormTraining, works_at_every_opt_level_and_stays_fp32_at_O2) {
  for (const auto level : {amp::OptLevel::O0, amp::OptLevel::O1, amp::OptLevel::O2, amp::OptLevel::O3}) {
    test::run(2, [&](World& world) {
      Sequential net(Linear(3, 4), BatchNorm1d(4), Linear(4, 4),
                     BatchNorm1d(torch::nn::BatchNormOptions(4).track_running_stats(false)), Linear(4, 2));
      test::fill_parameters(net->parameters(), 1);
      convert_sync_batch_norm(net, world);
      optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
      auto amp = amp::initialize(*net, optimizer, level, {.low_precision = at::kBFloat16});
      DistributedDataParallel ddp(net, world);
      const auto dtype = level == amp::OptLevel::O3 ? at::kBFloat16 : at::kFloat;
      EXPECT_EQ(net->ptr(1)->parameters()[0].scalar_type(), dtype);
      EXPECT_EQ(net->ptr(3)->parameters()[0].scalar_type(), dtype);  // without running statistics, too
      double first = 0, last = 0;
      for (int step = 0; step < 10; ++step) {
        const auto x = test::random({6, 3}, static_cast<std::uint64_t>(world.rank()));
        const auto loss = amp.forward(ddp, x).sub(1).square().mean();
        (step == 0 ? first : last) = loss.item<double>();
        amp.scale(loss).backward();
        amp.step(optimizer);
      }
      EXPECT_LT(last, first);
      EXPECT_EQ(ddp.difference(), "");
      test::expect_same_bits(world, statistics_of(net), "running statistics");
    });
  }
}

TEST(SyncBatchNormTraining, a_step_that_the_scaler_skips_leaves_the_statistics) {
  test::run(2, [](World& world) {
    auto net = net_of(1);
    convert_sync_batch_norm(net, world);
    optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    auto amp = amp::initialize(*net, optimizer, amp::OptLevel::O1, {.low_precision = at::kHalf});
    DistributedDataParallel ddp(net, world);
    auto before = statistics_of(net);
    auto x = test::random({6, 3}, static_cast<std::uint64_t>(world.rank()));
    amp.scale(amp.forward(ddp, world.rank() == 1 ? x * 1e6 : x).square().mean()).backward();
    amp.step(optimizer);
    EXPECT_LT(amp.loss_scale(), 65536.0);
    EXPECT_TRUE(at::equal(statistics_of(net), before));
    amp.scale(amp.forward(ddp, x).square().mean()).backward();
    amp.step(optimizer);
    EXPECT_FALSE(at::equal(statistics_of(net), before));
  });
}

TEST(SyncBatchNormTraining, one_module_twice_in_a_graph_and_backward_in_another_thread) {
  const auto joined = test::make_batch(3, {2, 3}, {}, at::kDouble, 4);
  torch::nn::BatchNorm1d plain(3);
  plain->to(at::kDouble);
  const auto x = joined.input.clone().requires_grad_();
  plain->forward(plain->forward(x).square()).backward(joined.gradient);
  test::run(2, [&](World& world) {
    auto module = test::made_for(world, 3, at::kDouble, 0);
    module->reset_parameters();
    const auto mine = joined.part_of(joined.input, world.rank()).clone().requires_grad_();
    const auto y = module->forward(module->forward(mine).square());
    std::thread([&] { y.backward(joined.part_of(joined.gradient, world.rank())); }).join();
    test::expect_close(mine.grad(), joined.part_of(x.grad(), world.rank()), {1e-8, 1e-8}, "input's gradient");
    test::expect_close(module->running_var, plain->running_var, {1e-9, 1e-9}, "running variance");
  });
}

TEST(SyncBatchNormTraining, autograd_notices_changed_inputs_and_refuses_second_derivatives) {
  test::run(2, [](World& world) {
    nn::SyncBatchNorm module(3, world);
    auto x = test::random({2, 3}, 1);
    const auto leaf = test::random({2, 3}, 2).requires_grad_();
    auto input = leaf * x;
    const auto y = module->forward(input);
    input.add_(1);
    try {
      y.sum().backward();
      ADD_FAILURE() << "a changed input went unnoticed";
    } catch (const c10::Error& error) {
      EXPECT_TRUE(mentions(error.what(), "modified by an inplace operation"));
    }
    const auto z = module->forward(leaf).square().sum();
    const auto error = input_error([&] { torch::autograd::grad({z}, {leaf}, {}, true, /*create_graph=*/true); });
    EXPECT_TRUE(mentions(error, "has no second derivative")) << error;
  });
}

TEST(SyncBatchNormTraining, a_rank_that_throws_before_its_backward_ends_the_others) {
  const auto failure = test::failure_of(3, [](World& world) {
    nn::SyncBatchNorm module(3, world);
    const auto leaf = test::random({2, 3}, 2).requires_grad_();
    const auto y = module->forward(leaf);
    if (world.rank() == 2) {
      throw std::runtime_error("the data ran out");
    }
    y.sum().backward();
  });
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(mentions(failure->what(), "[rank 2] the data ran out")) << failure->what();
}

}  // namespace
}  // namespace lockstep
