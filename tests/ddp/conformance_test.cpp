// SPDX-License-Identifier: Apache-2.0
// Behaviour that PyTorch tests its DistributedDataParallel for, under the names of its tests. docs/conformance.md lists
// them all, with those that live in other files.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <sstream>

#include "ddp/trials.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::expect_same_gradients;
using test::random;
using torch::nn::Linear;
using torch::nn::Sequential;

TEST(Conformance, test_ignored_output) {
  for (const auto unused : {UnusedParameters::Error, UnusedParameters::Detect}) {
    test::run(2, [&](World& world) {
      auto net = test::mlp(1);
      DistributedDataParallel ddp(net, world, {.unused = unused});
      for (int i = 0; i < 8; ++i) {
        ddp(random({2, 6}, 1));
      }
      ddp(random({2, 6}, 1)).sum().backward();
      EXPECT_EQ(ddp.statistics().reduced_backwards, 1U);
    });
  }
}

TEST(Conformance, test_no_grad) {
  test::run(2, [](World& world) {
    auto net = test::mlp(1);
    auto alone = test::mlp(1);
    DistributedDataParallel ddp(net, world);
    for (int i = 0; i < 4; ++i) {
      {
        const c10::NoGradGuard no_grad;
        EXPECT_FALSE(ddp(random({2, 6}, 1)).requires_grad());
      }
      ddp(random({2, 6}, 1)).sum().backward();
      alone->forward(random({2, 6}, 1)).sum().backward();
      expect_same_gradients(net->parameters(), alone->parameters());
    }
  });
}

/// Gradients that are cleared every second step only, with a reduction in each.
TEST(Conformance, test_accumulate_gradients_module) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& options : test::tiny_and_huge_buckets()) {
      test::run(ranks, [&](World& world) {
        auto net = test::mlp(1);
        auto alone = test::mlp(1);
        DistributedDataParallel ddp(net, world, options);
        for (std::uint64_t step = 0; step < 4; ++step) {
          const auto x = random({2 * world.size(), 6}, step);
          if (step % 2 == 0) {
            net->zero_grad();
            alone->zero_grad();
          }
          ddp(test::share(x, world.rank(), 2)).square().mean().backward();
          alone->forward(x).square().mean().backward();
          expect_same_gradients(net->parameters(), alone->parameters());
        }
      });
    }
  }
}

TEST(Conformance, test_ddp_ignore_params_arg) {
  for (const int ranks : {2, 3}) {
    test::run(ranks, [](World& world) {
      Sequential net(Linear(2, 2), Linear(2, 2), torch::nn::BatchNorm1d(2));
      test::fill_parameters(net->parameters(), static_cast<std::uint64_t>(world.rank()));
      const auto own = net->parameters()[0].clone();
      DistributedDataParallel ddp(net, world, {.ignore = {"0.weight", "2.running_mean"}});
      EXPECT_TRUE(at::equal(net->parameters()[0], own)) << "not broadcast";
      (net->parameters()[0].sum() * world.rank() +
       ddp(random({4, 2}, 1 + static_cast<std::uint64_t>(world.rank()))).sum())
          .backward();
      EXPECT_EQ(ddp.difference(), "");
      const auto means = world.all_gather_text(std::to_string(net->buffers()[0][0].item<float>()));
      const auto grads = world.all_gather_text(std::to_string(net->parameters()[0].grad()[0][0].item<float>()));
      EXPECT_NE(means[0], means[1]);
      EXPECT_NE(grads[0], grads[1]);
    });
  }
}

TEST(Conformance, test_save_load_checkpoint) {
  std::string saved;
  test::run(2, [&](World& world) {
    auto net = test::mlp(static_cast<std::uint64_t>(world.rank()));
    DistributedDataParallel ddp(net, world);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    ddp(random({2, 6}, 1)).sum().backward();
    sgd.step();
    if (world.rank() == 0) {
      std::ostringstream out;
      torch::save(net, out);
      saved = out.str();
    }
    world.barrier();
    auto loaded = test::mlp(7);
    std::istringstream in(saved);
    torch::load(loaded, in);
    DistributedDataParallel again(loaded, world, {.init_sync = false});
    net->zero_grad();
    const auto x = random({2, 6}, 5 + static_cast<std::uint64_t>(world.rank()));
    ddp(x).sum().backward();
    again(x).sum().backward();
    expect_same_gradients(loaded->parameters(), net->parameters());
    EXPECT_EQ(again.difference(), "");
  });
}

TEST(Conformance, test_sparse_gradients) {
  for (const int ranks : {1, 2, 3}) {
    test::run(ranks, [](World& world) {
      const auto table = [](bool sparse) {
        torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(10, 3).sparse(sparse));
        test::fill_parameters(bag->parameters(), 1);
        return bag;
      };
      auto net = table(true);
      auto alone = table(false);
      DistributedDataParallel ddp(net, world);
      for (int step = 0; step < 3; ++step) {
        const auto words = (at::arange(4 * world.size(), at::kLong) * (step + 1)).remainder(10).view({-1, 2});
        net->zero_grad();
        alone->zero_grad();
        ddp(test::share(words, world.rank(), 2)).square().mean().backward();
        alone->forward(words).square().mean().backward();
        expect_same_gradients(net->parameters(), alone->parameters());
      }
    });
  }
}

TEST(Conformance, test_broadcast_coalesced) {
  for (const int ranks : {2, 4}) {
    test::run(ranks, [](World& world) {
      std::vector<at::Tensor> tensors;
      const at::ScalarType dtypes[] = {at::kFloat, at::kHalf, at::kDouble, at::kLong, at::kByte, at::kBool};
      for (int i = 0; i < 200; ++i) {
        tensors.push_back(at::full({i % 7, 1 + i % 3}, world.rank() == 0 ? i % 2 : 1 - i % 2, dtypes[i % 6]));
      }
      const auto weight = at::ones({1}).requires_grad_();
      const DataParallelBase ddp(test::named({weight}, tensors), world);
      for (int i = 0; i < 200; ++i) {
        const auto& tensor = tensors[static_cast<std::size_t>(i)];
        EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, i % 2))) << i;
      }
    });
  }
}

TEST(Conformance, test_failure_recovery) {
  auto nets = std::vector<Sequential>{test::mlp(1), test::mlp(2)};
  for (const bool fails : {true, false, true, false}) {
    const auto texts = test::errors_on_each_rank(2, [&](World& world) {
      auto& net = nets[static_cast<std::size_t>(world.rank())];
      DistributedDataParallel ddp(net, world);
      net->zero_grad();
      ddp(random({2, 6}, 1)).sum().backward();
      if (fails && world.rank() == 1) {
        throw std::runtime_error("out of disk");
      }
      world.barrier();
      EXPECT_EQ(ddp.difference(), "");
    });
    test::expect_on_all(texts, fails ? "out of disk" : "");
    EXPECT_EQ(texts[0].empty(), !fails) << texts[0];
  }
}

TEST(Conformance, a_parameter_that_is_defined_after_wrapping_is_an_error) {
  const auto texts = test::errors_on_each_rank(2, [](World& world) {
    const auto weight = at::ones({1}).requires_grad_();
    at::Tensor late;
    DataParallelBase ddp([&] { return test::named({weight, late}); }, world);
    weight.sum().backward();
    late = at::ones({1}).requires_grad_();
    (weight * late).sum().backward();
  });
  test::expect_on_all(texts, "parameter p1 was replaced, frozen, unfrozen, added");
}

TEST(Conformance, test_ddp_invalid_comm_hook_return_type) {
  const auto texts = test::errors_on_each_rank(2, [](World& world) {
    auto net = test::mlp(1);
    DistributedDataParallel ddp(net, world);
    ddp.register_comm_hook([](const GradientBucket&) { return nullptr; });
    ddp(random({2, 6}, 1)).sum().backward();
  });
  test::expect_on_all(texts, "the communication hook returned no function");
}

}  // namespace
}  // namespace lockstep
