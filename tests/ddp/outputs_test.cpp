// SPDX-License-Identifier: Apache-2.0
// What forward may return, and which of it a loss uses; under the names of PyTorch's tests.
#include <gtest/gtest.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/rnn.h>

#include <map>
#include <memory>

#include "ddp/trials.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::expect_same_gradients;
using test::random;
using torch::nn::Linear;

/// Two independent layers, whose outputs a program may use together, apart, or not at all.
struct TwoOutputs : torch::nn::Module {
  Linear first = register_module("first", Linear(3, 2));
  Linear second = register_module("second", Linear(3, 2));

  TwoOutputs() { test::fill_parameters(parameters(), 8); }
  std::tuple<at::Tensor, std::map<std::string, std::vector<at::Tensor>>> forward(const at::Tensor& x) {
    return {first->forward(x), {{"second", {second->forward(x)}}}};
  }
};

TEST(Conformance, test_arbitrary_forward_return_value) {
  for (const int ranks : {1, 2, 3}) {
    test::run(ranks, [](World& world) {
      const auto net = std::make_shared<TwoOutputs>();
      DistributedDataParallel ddp(net, world);
      const auto [first, rest] = ddp.forward(random({2, 3}, 1));
      (first + rest.at("second")[0]).sum().backward();
      EXPECT_EQ(ddp.statistics().reduced_backwards, 1U);
      EXPECT_TRUE(net->second->bias.grad().defined());
    });
  }
}

TEST(Conformance, test_output_unused_in_loss_and_undefined_grad_parity_unused_parameters) {
  for (const int ranks : {1, 2, 3}) {
    for (const auto& options : test::tiny_and_huge_buckets(UnusedParameters::Detect)) {
      test::run(ranks, [&](World& world) {
        const auto net = std::make_shared<TwoOutputs>();
        const auto alone = std::make_shared<TwoOutputs>();
        DistributedDataParallel ddp(net, world, options);
        for (const bool use_second : {false, true, false}) {
          for (const auto& module : {net, alone}) {
            module->zero_grad();
            const auto [first, rest] = module->forward(random({2, 3}, 1));
            (use_second ? rest.at("second")[0] : first).sum().backward();
          }
          expect_same_gradients(net->parameters(), alone->parameters());
        }
      });
    }
  }
}

/// One forward, a backward for each of two outputs that share nothing: in a window, or with unused parameters allowed.
TEST(Conformance, test_multiple_outputs_multiple_backward) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool window : {true, false}) {
      test::run(ranks, [&](World& world) {
        const auto net = std::make_shared<TwoOutputs>();
        const auto alone = std::make_shared<TwoOutputs>();
        DistributedDataParallel ddp(net, world,
                                    {.unused = window ? UnusedParameters::Error : UnusedParameters::Detect});
        for (const auto& module : {net, alone}) {
          const auto [first, rest] = module->forward(random({2, 3}, 1));
          {
            const auto quiet = window ? std::make_unique<DataParallelBase::NoSync>(ddp.no_sync()) : nullptr;
            first.square().sum().backward();
          }
          rest.at("second")[0].square().sum().backward();
        }
        expect_same_gradients(net->parameters(), alone->parameters());
      });
    }
  }
}

TEST(Conformance, test_ddp_packed_sequence) {
  for (const int ranks : {1, 2}) {
    test::run(ranks, [](World& world) {
      torch::nn::LSTM net(2, 3);
      torch::nn::LSTM alone(2, 3);
      test::fill_parameters(net->parameters(), 1);
      test::fill_parameters(alone->parameters(), 1);
      DistributedDataParallel ddp(net, world);
      const auto packed =
          torch::nn::utils::rnn::pack_padded_sequence(random({4, 2, 2}, 1), at::tensor({4, 2}, at::kLong));
      std::get<0>(ddp->forward_with_packed_input(packed)).data().sum().backward();
      std::get<0>(alone->forward_with_packed_input(packed)).data().sum().backward();
      expect_same_gradients(net->parameters(), alone->parameters());
    });
  }
}

TEST(Conformance, test_ddp_create_graph) {
  test::run(2, [](World& world) {
    auto net = test::mlp(1);
    auto alone = test::mlp(1);
    DistributedDataParallel ddp(net, world);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      alone->zero_grad();
      ddp(random({2, 6}, 1)).square().sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
      alone->forward(random({2, 6}, 1)).square().sum().backward();
      expect_same_gradients(net->parameters(), alone->parameters());
    }
  });
}

}  // namespace
}  // namespace lockstep
