// SPDX-License-Identifier: Apache-2.0
// Trials B: parameters that are unused, shared, used repeatedly, or ready in another order.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "ddp/trials.h"
#include "support/checkpoint_function.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::errors_on_each_rank;
using test::expect_on_all;
using test::random;
using torch::nn::Linear;
using torch::nn::Sequential;

TEST(Trials, B1_an_unused_layer_in_the_only_bucket_ends_that_very_backward) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& options : test::tiny_and_huge_buckets()) {
      const auto texts = errors_on_each_rank(ranks, [&](World& world) {
        Sequential net(Linear(1, 1), Linear(1, 1));
        DistributedDataParallel ddp(net, world, options);
        (*net)[0]->as<Linear>()->forward(at::full({1, 1}, 1.0 + world.rank())).sum().backward();
        ADD_FAILURE() << "a step could be taken";
      });
      expect_on_all(texts, "no gradient for parameters of rank ");
      expect_on_all(texts, "in step 0: 1.weight, 1.bias");
    }
  }
}

TEST(Trials, B2_weight_decay_and_momentum_leave_an_unused_parameter_alone) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& options : test::tiny_and_huge_buckets(UnusedParameters::Detect)) {
      test::run(ranks, [&](World& world) {
        const auto p = at::ones({1}).requires_grad_();
        const auto q = at::ones({1}).requires_grad_();
        const DataParallelBase ddp(test::named({p, q}), world, options);
        torch::optim::SGD sgd({p}, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
        (p + q).sum().backward();
        sgd.step();
        EXPECT_NEAR(p.item<double>(), 0.89, 1e-6);
        test::forget_gradients({p, q});
        q.sum().backward();
        sgd.step();
        EXPECT_NEAR(p.item<double>(), 0.89, 1e-6);
        EXPECT_FALSE(p.grad().defined());
        (world.rank() == 0 ? p * 6 + q : q).sum().backward();
        EXPECT_NEAR(p.grad().item<double>(), 6.0 / world.size(), 1e-6);
      });
    }
  }
}

/// Words in, scores of all words out, through one matrix.
struct TiedModel {
  at::Tensor table = (random({7, 4}, 3) * 0.3).requires_grad_();
  Linear hidden{4, 4};

  TiedModel() { test::fill_parameters(hidden->parameters(), 4); }
  std::vector<at::Tensor> parameters() const { return {table, hidden->weight, hidden->bias}; }
  at::Tensor loss(const at::Tensor& words) const {
    const auto h = at::tanh(at::linear(at::embedding(table, words), hidden->weight, hidden->bias));
    return at::log_softmax(at::matmul(h, table.t()), 1).square().mean();
  }
};

at::Tensor words_of(int step, int ranks) {
  return (at::arange(3 * ranks, at::kLong) * (step + 2)).remainder(7);
}

TEST(Trials, B3_a_tied_embedding_equals_one_process_and_takes_one_place) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool set_to_none : {true, false}) {
      for (const auto unused : {UnusedParameters::Error, UnusedParameters::Detect}) {
        const TiedModel alone;
        torch::optim::SGD sgd(alone.parameters(), torch::optim::SGDOptions(0.5));
        for (int step = 0; step < 3; ++step) {
          sgd.zero_grad();
          alone.loss(words_of(step, ranks)).backward();
          sgd.step();
        }
        test::run(ranks, [&](World& world) {
          const TiedModel tied;
          auto list = test::named(tied.parameters());
          list.parameters.push_back({"output.weight", tied.table});
          const DataParallelBase ddp(list, world, {.unused = unused});
          EXPECT_EQ(ddp.describe().find("output.weight"), std::string::npos);
          torch::optim::SGD own(tied.parameters(), torch::optim::SGDOptions(0.5));
          for (int step = 0; step < 3; ++step) {
            own.zero_grad(set_to_none);
            tied.loss(test::share(words_of(step, ranks), world.rank(), 3)).backward();
            own.step();
          }
          for (std::size_t i = 0; i < 3; ++i) {
            EXPECT_TRUE(at::allclose(tied.parameters()[i], alone.parameters()[i], 1e-5, 1e-6)) << i;
          }
        });
      }
    }
  }
}

TEST(Trials, B4_a_segment_recomputed_in_backward_with_a_shared_parameter) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto unused : {UnusedParameters::Error, UnusedParameters::Detect}) {
      for (const auto& options : test::tiny_and_huge_buckets(unused)) {
        test::run(ranks, [&](World& world) {
          const auto w = at::ones({2}).requires_grad_();
          const auto v = at::ones({2}).requires_grad_();
          const DataParallelBase ddp(test::named({w, v}), world, options);
          const test::Segment segment = [&](const at::Tensor& x) { return x * w; };
          for (int step = 0; step < 3; ++step) {
            test::forget_gradients({w, v});
            const auto x = at::full({2}, 1.0 + world.rank()).requires_grad_();
            (test::checkpoint(x, segment) + test::checkpoint(x * 2, segment) + v * w).sum().backward();
            EXPECT_TRUE(at::allclose(w.grad(), at::full({2}, 1.5 * (world.size() + 1) + 1))) << w.grad();
            EXPECT_TRUE(at::allclose(v.grad(), at::ones({2})));
          }
        });
      }
    }
  }
}

TEST(Trials, B5_windows_of_two_whose_first_backward_ever_is_quiet) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& options : test::tiny_and_huge_buckets()) {
      const auto input = [&](int step, int micro) {
        return random({2 * ranks, 6}, static_cast<std::uint64_t>(10 * step + micro));
      };
      auto alone = test::mlp(5);
      torch::optim::SGD reference(alone->parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 3; ++step) {
        reference.zero_grad();
        for (const int micro : {0, 1}) {
          (alone->forward(input(step, micro)).square().mean() / 2).backward();
        }
        reference.step();
      }
      test::run(ranks, [&](World& world) {
        auto net = test::mlp(5 + static_cast<std::uint64_t>(world.rank()));
        DistributedDataParallel ddp(net, world, options);
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
        const auto loss = [&](int step, int micro) {
          return ddp(test::share(input(step, micro), world.rank(), 2)).square().mean() / 2;
        };
        for (int step = 0; step < 3; ++step) {
          sgd.zero_grad();
          {
            const auto quiet = ddp.no_sync();
            loss(step, 0).backward();
          }
          loss(step, 1).backward();
          sgd.step();
          EXPECT_EQ(ddp.difference(), "") << step;
        }
        for (std::size_t i = 0; i < net->parameters().size(); ++i) {
          EXPECT_TRUE(at::allclose(net->parameters()[i], alone->parameters()[i], 1e-5, 1e-6)) << i;
        }
      });
    }
  }
}

TEST(Trials, B8_two_forwards_through_batch_norm_equal_the_loop_without_a_wrapper) {
  for (const int ranks : {1, 2}) {
    test::run(ranks, [](World& world) {
      Sequential alone(Linear(2, 4), torch::nn::BatchNorm1d(4));
      Sequential net(Linear(2, 4), torch::nn::BatchNorm1d(4));
      test::fill_parameters(alone->parameters(), 1);
      test::fill_parameters(net->parameters(), 1);
      DistributedDataParallel ddp(net, world);
      for (std::uint64_t step = 0; step < 3; ++step) {
        net->zero_grad();
        alone->zero_grad();
        const auto a = random({8, 2}, 2 * step);
        const auto b = random({8, 2}, 2 * step + 1);
        EXPECT_NO_THROW((ddp(a) + ddp(b)).square().sum().backward());
        (alone->forward(a) + alone->forward(b)).square().sum().backward();
        for (std::size_t i = 0; i < net->parameters().size(); ++i) {
          EXPECT_TRUE(at::equal(net->parameters()[i].grad(), alone->parameters()[i].grad())) << i;
        }
        for (std::size_t i = 0; i < net->buffers().size(); ++i) {
          EXPECT_TRUE(at::equal(net->buffers()[i], alone->buffers()[i])) << i;
        }
      }
    });
  }
}

TEST(Trials, B10_what_ranks_use_may_change_inside_a_window) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& options : test::tiny_and_huge_buckets(UnusedParameters::Detect)) {
      test::run(ranks, [&](World& world) {
        const auto first = at::zeros({1}).requires_grad_();
        const auto second = at::zeros({1}).requires_grad_();
        const auto never = at::zeros({1}).requires_grad_();
        const DataParallelBase ddp(test::named({first, second, never}), world, options);
        const double own = 2.0 * world.rank() + 1;  // mean: the number of ranks
        for (int window = 0; window < 3; ++window) {
          test::forget_gradients({first, second});
          {
            const auto quiet = ddp.no_sync();
            (first * own).sum().backward();
          }
          (second * own).sum().backward();
          EXPECT_NEAR(first.grad().item<double>(), world.size(), 1e-6);
          EXPECT_NEAR(second.grad().item<double>(), world.size(), 1e-6);
          EXPECT_FALSE(never.grad().defined());
        }
      });
    }
  }
}

TEST(Trials, B12_every_rank_gets_ready_in_an_order_of_its_own) {
  constexpr int kCount = 5;
  for (const int ranks : {2, 3, 4}) {
    for (const auto& options : test::tiny_and_huge_buckets()) {
      test::run(ranks, [&](World& world) {
        std::vector<at::Tensor> parameters;
        for (int i = 0; i < kCount; ++i) {
          parameters.push_back(at::full({3 + i}, 1.0).requires_grad_());
        }
        const DataParallelBase ddp(test::named(parameters), world, options);
        for (int step = 0; step < 5; ++step) {
          test::forget_gradients(parameters);
          // The chain is as long as the parameter's place in this rank's order: the last link is differentiated first.
          auto chain = at::zeros({}).requires_grad_() * 1;
          for (int i = 0; i < kCount; ++i) {
            const int place = (i * (world.rank() + 1) + step) % kCount;
            chain = chain + (parameters[static_cast<std::size_t>(place)] * (place + world.rank())).sum();
          }
          chain.backward();
          for (int i = 0; i < kCount; ++i) {
            const auto expected = i + (world.size() - 1) / 2.0;
            EXPECT_TRUE(at::allclose(parameters[static_cast<std::size_t>(i)].grad(), at::full({3 + i}, expected)));
          }
        }
        EXPECT_EQ(ddp.difference(), "");
      });
    }
  }
}

}  // namespace
}  // namespace lockstep
