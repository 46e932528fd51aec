// SPDX-License-Identifier: Apache-2.0
// Ranks with fewer inputs than others: what has hung, or gone on with wrong divisors, in systems of this kind.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include "ddp/uneven.h"
#include "lockstep/comm/launch.h"
#include "lockstep/ddp/join.h"
#include "lockstep/nn/batch_norm.h"
#include "support/models.h"

namespace lockstep::uneven {
namespace {

using test::OneNumber;

class TrialsJoin : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TrialsJoin, testing::Values(2, 3, 4));

/// Rank 0 has 5 inputs, the others 3, and every gradient is 1.
TEST_P(TrialsJoin, E4_test_ddp_grad_div_uneven_inputs) {
  for (const auto divisor : {JoinDivisor::Initial, JoinDivisor::Live}) {
    test::run(GetParam(), [&](World& world) {
      OneNumber model(world);
      model.train(world.rank() == 0 ? 5 : 3, 1, 100 * world.rank(), {.divisor = divisor});
      const float alone = divisor == JoinDivisor::Live ? 1.0F : 1.0F / static_cast<float>(world.size());
      EXPECT_EQ(model.gradients, (std::vector<float>{1, 1, 1, alone, alone}));
      EXPECT_EQ(model.seen.item<float>(), 4);
      EXPECT_EQ(model.ddp.difference(), "");
      EXPECT_EQ(model.ddp.statistics().shadowed_backwards, world.rank() == 0 ? 0U : 2U);
    });
  }
}

TEST_P(TrialsJoin, E4_the_last_rank_that_trains_need_not_be_rank_0) {
  test::run(GetParam(), [](World& world) {
    OneNumber model(world, {.broadcast_buffers = world.size() != 3});
    model.train(2 * world.rank(), 1, 100 * world.rank(), {.divisor = JoinDivisor::Live});
    const auto last = world.size() - 1;
    EXPECT_EQ(model.gradients, std::vector<float>(static_cast<std::size_t>(2 * last), 1));
    EXPECT_EQ(model.seen.item<float>(), static_cast<float>(100 * last + 2 * last - 1));
    EXPECT_EQ(model.ddp.difference(), "");
  });
}

/// Windows of 2: what the others gather in an unfinished window takes part in rank 0's next reduced pass.
TEST_P(TrialsJoin, E5a_no_sync_windows) {
  for (const auto divisor : {JoinDivisor::Initial, JoinDivisor::Live}) {
    test::run(GetParam(), [&](World& world) {
      OneNumber model(world);
      const int inputs = world.rank() == 0 ? 6 : 3;
      const auto body = [&] {
        for (int i = 0; i < inputs; ++i) {
          if (i % 2 == 0) {
            const auto quiet = model.ddp.no_sync();
            model.backward(world.rank() == 0 ? 1 : 10);
          } else {
            model.backward(world.rank() == 0 ? 1 : 10);
            model.step();
          }
        }
      };
      join(model.ddp, body, [&] { model.step(); }, {.divisor = divisor});
      const auto n = static_cast<float>(world.size());
      const float alone = divisor == JoinDivisor::Live ? 2 : 2 / n;
      ASSERT_EQ(model.gradients.size(), 3U);
      EXPECT_FLOAT_EQ(model.gradients[0], (2 + 20 * (n - 1)) / n);
      EXPECT_FLOAT_EQ(model.gradients[1], (2 + 10 * (n - 1)) / n);
      EXPECT_FLOAT_EQ(model.gradients[2], alone);
      EXPECT_EQ(model.ddp.difference(), "");
    });
  }
}

TEST_P(TrialsJoin, E5b_communication_hooks) {
  const std::vector<std::function<CommHook(const World&)>> hooks{
      [](const World& w) { return compress_hook(w, at::kHalf); },
      [](const World& w) { return compress_hook(w, at::kBFloat16); },
      [](const World& w) { return float_reduction_hook(w); },
      [](const World& w) {
        return power_sgd_hook(w, {.matrix_approximation_rank = 2, .start_step = 1, .min_compression_rate = 0.1});
      }};
  for (const auto& make : hooks) {
    test::run(GetParam(), [&](World& world) {
      auto net = test::mlp(1);
      DistributedDataParallel ddp(net, world, {.bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4});
      ddp.register_comm_hook(make(world));
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      const auto step = [&] {
        sgd.step();
        sgd.zero_grad();
      };
      const auto body = [&] {
        for (int i = 0; i < 2 + 2 * world.rank(); ++i) {
          ddp(test::random({2, 6}, static_cast<std::uint64_t>(10 * i + world.rank()))).square().mean().backward();
          step();
        }
      };
      const auto before = net->parameters()[0].clone();
      join(ddp, body, step);
      EXPECT_EQ(ddp.difference(), "");
      EXPECT_FALSE(at::equal(before, net->parameters()[0]));
    });
  }
}

/// Takes the mean over all ranks' batches, as SyncBatchNorm does.
struct CentredImpl : torch::nn::Module, ForwardCollective {
  explicit CentredImpl(const World& w) : world(w) { weight = register_parameter("weight", at::ones({1})); }

  at::Tensor forward(const at::Tensor& x) const {
    const auto mean = x.detach().mean(0, /*keepdim=*/true);
    world.all_reduce(mean, ReduceOp::Average, {"mean"}).wait();
    return (x - mean) * weight;
  }

  World world;
  at::Tensor weight;
};

TEST_P(TrialsJoin, E5c_what_communicates_in_forward_is_refused_up_front) {
  std::vector<std::string> texts(static_cast<std::size_t>(GetParam()));
  test::run(GetParam(), [&](World& world) {
    auto net = std::make_shared<CentredImpl>(world);
    DistributedDataParallel ddp(net, world);
    bool ran = false;
    try {
      join(
          ddp, [&] { ran = true; }, nullptr);
    } catch (const InputError& error) {
      texts[static_cast<std::size_t>(world.rank())] = error.what();
    }
    EXPECT_FALSE(ran);
    world.barrier();
  });
  for (const auto& text : texts) {
    EXPECT_NE(text.find("communicates in forward"), std::string::npos) << text;
    EXPECT_EQ(text, texts[0]);
  }
}

TEST_P(TrialsJoin, E5c_test_ddp_uneven_input_exception_stops_all_when_the_first_ends) {
  test::run(GetParam(), [](World& world) {
    auto net = std::make_shared<CentredImpl>(world);
    DistributedDataParallel ddp(net, world);
    int steps = 0;
    const auto body = [&] {
      for (int i = 0; i < (world.rank() == 1 ? 2 : 5); ++i) {
        ddp(test::random({2, 3}, static_cast<std::uint64_t>(world.rank()))).square().sum().backward();
        ++steps;
      }
    };
    try {
      join(ddp, body, nullptr, {.throw_on_early_end = true});
      ADD_FAILURE() << "rank " << world.rank() << " was not told";
    } catch (const EndOfInputs& error) {
      EXPECT_NE(std::string(error.what()).find("out of inputs: rank 1"), std::string::npos) << error.what();
    }
    EXPECT_EQ(steps, 2);
    // The world is as good as before, and so is the wrapper.
    ddp(test::random({2, 3}, 1)).square().sum().backward();
    EXPECT_EQ(ddp.difference(), "");
  });
}

TEST_P(TrialsJoin, E5c_sync_batch_norm_trains_until_the_first_ends) {
  test::run(GetParam(), [](World& world) {
    torch::nn::Sequential net(torch::nn::Linear(3, 4), nn::SyncBatchNorm(4, world.split(0, world.rank())));
    test::fill_parameters(net->parameters(), 1 + static_cast<std::uint64_t>(world.rank()));
    DistributedDataParallel ddp(net, world);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    int steps = 0;
    const auto body = [&] {
      for (int i = 0; i < (world.rank() == 1 ? 2 : 5); ++i) {
        sgd.zero_grad();
        ddp(test::random({2, 3}, static_cast<std::uint64_t>(10 * i + world.rank()))).square().sum().backward();
        sgd.step();
        ++steps;
      }
    };
    EXPECT_THROW(join(ddp, body, nullptr), InputError);
    EXPECT_THROW(join(ddp, body, nullptr, {.throw_on_early_end = true}), EndOfInputs);
    EXPECT_EQ(steps, 2);
    EXPECT_EQ(ddp.difference(), "");
    EXPECT_EQ(net->named_buffers()["1.num_batches_tracked"].item<std::int64_t>(), 2);
  });
}

/// Parameter b is used on the last rank alone, c nowhere.
TEST_P(TrialsJoin, E5d_unused_parameters) {
  test::run(GetParam(), [](World& world) {
    const auto a = at::ones({2}).requires_grad_();
    const auto b = at::ones({2}).requires_grad_();
    const auto c = at::ones({2}).requires_grad_();
    const DataParallelBase ddp(ModelTensors{{{"a", a}, {"b", b}, {"c", c}}, {}}, world,
                               {.unused = UnusedParameters::Detect, .bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6});
    torch::optim::SGD sgd({a, b, c}, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
    const auto step = [&] {
      EXPECT_FALSE(c.grad().defined());
      sgd.step();
      sgd.zero_grad();
    };
    const bool last = world.rank() == world.size() - 1;
    const auto body = [&] {
      for (int i = 0; i < (last ? 4 : 2); ++i) {
        (last && i % 2 == 1 ? a + 3 * b : a).sum().backward();
        EXPECT_EQ(b.grad().defined(), i % 2 == 1) << i;
        step();
      }
    };
    join(ddp, body, step);
    EXPECT_EQ(ddp.difference(), "");
    EXPECT_TRUE(at::equal(c, at::ones({2})));
    EXPECT_LT(b[0].item<float>(), 1);
  });
}

TEST_P(TrialsJoin, test_ddp_uneven_input_join_disable) {
  test::run(GetParam(), [](World& world) {
    OneNumber plain(world);
    plain.train(3, world.rank(), 0, {.enable = false});
    EXPECT_EQ(plain.gradients, std::vector<float>(3, static_cast<float>(world.size() - 1) / 2));
    // Nothing but the three reductions and the three copies of the buffer.
    const auto before = world.collectives_issued();
    plain.train(3, world.rank(), 0, {.enable = false});
    EXPECT_EQ(world.collectives_issued() - before, 6U);
  });
}

}  // namespace
}  // namespace lockstep::uneven
