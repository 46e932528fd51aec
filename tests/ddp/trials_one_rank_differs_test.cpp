// SPDX-License-Identifier: Apache-2.0
// Trials E: one rank skips, evaluates, calls something else, or does not come.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "ddp/trials.h"
#include "lockstep/amp/grad_scaler.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::errors_on_each_rank;
using test::expect_on_all;
using test::random;
using namespace std::chrono_literals;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Trials, E1_a_nan_loss_of_one_rank_skips_the_same_batch_on_all) {
  for (const int ranks : {1, 2, 3, 4}) {
    test::run(ranks, [](World& world) {
      auto net = test::mlp(static_cast<std::uint64_t>(world.rank()));
      DistributedDataParallel ddp(net, world);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      amp::GradScaler scaler;
      for (int step = 0; step < 5; ++step) {
        sgd.zero_grad();
        const auto before = ddp.digest();
        const bool bad = step % 2 == 1;
        const bool mine = bad && world.rank() == world.size() - 1;
        scaler.scale(ddp(random({2, 6}, 1)).square().mean() * (mine ? kNan : 1.0)).backward();
        EXPECT_EQ(scaler.step(sgd).skipped(), bad);
        scaler.update();
        EXPECT_EQ(ddp.digest() == before, bad) << step;
        EXPECT_EQ(ddp.difference(), "") << step;
      }
      EXPECT_EQ(scaler.get_scale(), 65536.0 / 4);
    });
  }
}

TEST(Trials, E1_a_nan_in_a_gradient_that_is_not_reduced_counts_on_all_ranks) {
  for (const int ranks : {2, 3}) {
    test::run(ranks, [](World& world) {
      const auto own = at::ones({2}).requires_grad_();
      torch::optim::SGD sgd({own}, torch::optim::SGDOptions(0.1));
      amp::GradScaler scaler({.world = world});
      scaler.scale(own.sum() * (world.rank() == 1 ? kNan : 1.0)).backward();
      EXPECT_TRUE(scaler.step(sgd).skipped());
      EXPECT_TRUE(at::equal(own, at::ones({2})));
    });
  }
}

TEST(Trials, E3_a_loss_of_zeros_takes_part_by_a_product_with_zero) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& options : test::tiny_and_huge_buckets(UnusedParameters::Detect)) {
      test::run(ranks, [&](World& world) {
        const auto a = at::ones({2}).requires_grad_();
        const auto b = at::ones({2}).requires_grad_();
        const DataParallelBase ddp(test::named({a, b}), world, options);
        (world.rank() == 0 ? (a + b).sum() : (a * 0).sum()).backward();
        EXPECT_TRUE(at::allclose(a.grad(), at::full({2}, 1.0 / world.size())));
        EXPECT_TRUE(at::allclose(b.grad(), at::full({2}, 1.0 / world.size())));
      });
    }
  }
}

TEST(Trials, E3_a_loss_that_does_not_reach_the_model_ends_all_ranks_in_time) {
  for (const auto unused : {UnusedParameters::Error, UnusedParameters::Detect}) {
    for (const bool goes_on : {false, true}) {
      const auto start = std::chrono::steady_clock::now();
      std::atomic<int> trained{0};
      const auto texts = errors_on_each_rank(2, [&](World& world) {
        const auto w = at::ones({2}).requires_grad_();
        const DataParallelBase ddp(test::named({w}), world, {.unused = unused});
        if (world.rank() == 0) {
          w.sum().backward();
          ++trained;
        } else {
          at::zeros({1}).requires_grad_().sum().backward();
          if (goes_on) {
            world.barrier();
          }
        }
      });
      EXPECT_EQ(trained, 0) << "one rank trained alone";
      EXPECT_NE(texts[0].find(goes_on ? "ranks called different collectives" : "rank 1 left"), std::string::npos)
          << texts[0];
      EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
    }
  }
}

TEST(Trials, E6_rank_0_evaluates_alone_while_others_wait_in_a_barrier) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto unused : {UnusedParameters::Error, UnusedParameters::Detect}) {
      test::run(ranks, [&](World& world) {
        torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
        DistributedDataParallel ddp(net, world, {.unused = unused});
        ddp(random({4, 6}, static_cast<std::uint64_t>(world.rank()))).square().sum().backward();
        const auto before = world.collectives_issued();
        if (world.rank() == 0) {
          const c10::NoGradGuard no_grad;
          net->eval();
          for (int i = 0; i < 3; ++i) {
            ddp(random({2, 6}, 9));
          }
          net->train();
          ddp(random({2, 6}, 9));  // not even in training mode
        }
        EXPECT_EQ(world.collectives_issued(), before);
        world.barrier();
        ddp(random({4, 6}, static_cast<std::uint64_t>(world.rank()))).square().sum().backward();
        EXPECT_EQ(ddp.difference(), "");
      });
    }
  }
}

TEST(Trials, E7_sizes_that_differ_end_every_rank_with_both_sizes) {
  for (const int ranks : {2, 3, 4}) {
    auto options = test::quick_options();
    options.timeout = 5s;
    const auto start = std::chrono::steady_clock::now();
    const auto texts = errors_on_each_rank(
        ranks,
        [](World& world) {
          world.all_reduce(at::ones({world.rank() == 0 ? 2000 : 1000}), ReduceOp::Sum, {"gradients", 7}).wait();
        },
        options);
    expect_on_all(texts, "2000 Float");
    expect_on_all(texts, "1000 Float");
    expect_on_all(texts, "rank 0");
    EXPECT_LT(std::chrono::steady_clock::now() - start, 15s);
  }
}

TEST(Trials, E7_a_rank_that_is_alive_but_does_not_come_is_named_after_the_timeout) {
  for (const int ranks : {2, 3}) {
    auto options = test::quick_options();
    options.timeout = 2s;
    std::atomic<int> ended{0};
    const auto texts = errors_on_each_rank(
        ranks,
        [&](World& world) {
          if (world.rank() == 1) {
            while (ended < world.size() - 1) {
              std::this_thread::sleep_for(20ms);
            }
            for (int i = 0; i < 500; ++i) {  // until the news has come here
              world.check();
              std::this_thread::sleep_for(20ms);
            }
            return;
          }
          try {
            const auto w = at::ones({2}).requires_grad_();
            const DataParallelBase ddp(test::named({w}), world, {.init_sync = false});
            w.sum().backward();
          } catch (...) {
            ++ended;
            throw;
          }
        },
        options);
    expect_on_all(texts, "rank 1");
    expect_on_all(texts, "gradient bucket 0");
  }
}

}  // namespace
}  // namespace lockstep
