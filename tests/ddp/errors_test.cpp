// SPDX-License-Identifier: Apache-2.0
// Faults while training: every rank learns of them in the first failing rank's words, and nothing is silently wrong.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using test::mlp;
using test::random;
namespace ag = torch::autograd;

struct ThrowsIf : ag::Function<ThrowsIf> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x, bool throws) {
    context->saved_data["throws"] = throws;
    return x.clone();
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    if (context->saved_data["throws"].toBool()) {
      throw std::runtime_error("data loader lost its connection");
    }
    return {gradients[0], at::Tensor()};
  }
};

TEST(DdpErrors, a_failed_backward_on_all_ranks_leaves_the_next_one_right) {
  run_ranks(2, [](World& world) {
    auto net = mlp(1);
    auto alone = mlp(1);
    DistributedDataParallel ddp(net, world);
    const auto x = random({2, 6}, 5);
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      const bool throws = step % 2 == 1;
      const auto hidden = ThrowsIf::apply((*net)[0]->as<torch::nn::Linear>()->forward(x), throws);
      const auto rest =
          (*net)[4]->as<torch::nn::Linear>()->forward((*net)[2]->as<torch::nn::Linear>()->forward(hidden));
      if (throws) {
        EXPECT_THROW(rest.sum().backward(), std::runtime_error);
        continue;
      }
      rest.sum().backward();
      alone->zero_grad();
      auto h = (*alone)[0]->as<torch::nn::Linear>()->forward(x);
      (*alone)[4]->as<torch::nn::Linear>()->forward((*alone)[2]->as<torch::nn::Linear>()->forward(h)).sum().backward();
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), alone->parameters()[i].grad())) << step;
      }
    }
  });
}

TEST(DdpErrors, a_rank_that_throws_in_backward_is_named_on_all) {
  for (int bad = 0; bad < 3; ++bad) {
    std::vector<std::string> texts(3);
    try {
      run_ranks(3, [&](World& world) {
        auto net = mlp(1);
        DistributedDataParallel ddp(net, world);
        try {
          for (int step = 0; step < 3; ++step) {
            ThrowsIf::apply(ddp(random({2, 6}, 5)), step == 1 && world.rank() == bad).sum().backward();
          }
        } catch (const std::exception& error) {
          texts[static_cast<std::size_t>(world.rank())] = error.what();
          throw;
        }
      });
      FAIL();
    } catch (const WorldError& error) {
      EXPECT_EQ(error.origin(), bad);
      EXPECT_NE(std::string(error.what()).find("data loader lost its connection"), std::string::npos) << error.what();
    }
    for (const auto& text : texts) {
      EXPECT_NE(text.find("data loader lost its connection"), std::string::npos) << text;
    }
  }
}

/// Each change is made on all ranks after wrapping; the next backward must say so and name the parameter.
void expect_noticed(const std::function<void(torch::nn::Sequential&)>& change, const std::string& name) {
  try {
    run_ranks(2, [&](World& world) {
      auto net = mlp(1);
      DistributedDataParallel ddp(net, world);
      ddp(random({2, 6}, 5)).sum().backward();
      net->zero_grad();
      change(net);
      const auto dtype = net->parameters()[2].scalar_type();
      ddp(random({2, 6}, 5).to(dtype)).sum().backward();
    });
    FAIL() << "not noticed";
  } catch (const WorldError& error) {
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
  }
}

TEST(DdpErrors, A6_a_model_that_was_cast_after_wrapping) {
  expect_noticed([](torch::nn::Sequential& net) { net->to(at::kDouble); }, "no longer fits");
}

TEST(DdpErrors, A8_frozen_after_wrapping) {
  expect_noticed([](torch::nn::Sequential& net) { net->named_parameters()["2.bias"].requires_grad_(false); }, "2.bias");
}

TEST(DdpErrors, A8_unfrozen_after_wrapping) {
  try {
    run_ranks(2, [&](World& world) {
      auto net = mlp(1);
      net->named_parameters()["2.bias"].requires_grad_(false);
      DistributedDataParallel ddp(net, world);
      ddp(random({2, 6}, 5)).sum().backward();
      net->named_parameters()["2.bias"].requires_grad_(true);
      ddp(random({2, 6}, 5)).sum().backward();
    });
    FAIL();
  } catch (const WorldError& error) {
    EXPECT_NE(std::string(error.what()).find("2.bias"), std::string::npos) << error.what();
  }
}

TEST(DdpErrors, a_cast_there_and_back_keeps_the_hooks) {
  run_ranks(2, [](World& world) {
    auto net = torch::nn::Linear(1, 1);
    DistributedDataParallel ddp(net, world);
    net->to(at::kDouble);
    net->to(at::kFloat);
    (net->weight * (world.rank() == 0 ? 1.0 : 3.0) + net->bias).sum().backward();
    EXPECT_EQ(net->weight.grad().item<float>(), 2);
  });
}

TEST(DdpErrors, a_wrapper_that_is_gone_leaves_the_gradients_and_no_hooks) {
  World world;
  auto net = mlp(1);
  {
    DistributedDataParallel ddp(net, world);
    ddp(random({2, 6}, 5)).sum().backward();
  }
  EXPECT_TRUE(net->parameters()[0].grad().defined());
  net->zero_grad();
  EXPECT_NO_THROW(net->forward(random({2, 6}, 5)).sum().backward());
}

TEST(DdpErrors, a_wrapper_destroyed_between_forward_and_backward_is_harmless) {
  World world;
  auto net = mlp(1);
  auto ddp = std::make_unique<DistributedDataParallel<torch::nn::Sequential>>(net, world);
  const auto loss = (*ddp)(random({2, 6}, 5)).sum();
  ddp.reset();
  EXPECT_NO_THROW(loss.backward());
}

/// Rank 1 makes one pass less: the first calls that do not belong together are found, and both are named.
TEST(DdpErrors, a_rank_that_skips_a_step_is_caught_and_both_calls_are_named) {
  const auto failure = test::failure_of(2, [](World& world) {
    auto net = mlp(1);
    DistributedDataParallel ddp(net, world);
    for (int step = 0; step < 3; ++step) {
      if (step != 1 || world.rank() == 0) {
        ddp(random({2, 6}, 5)).sum().backward();
      }
    }
    world.barrier({"end of epoch"});
  });
  ASSERT_TRUE(failure);
  const std::string text = failure->what();
  EXPECT_NE(text.find("gradient bucket 0"), std::string::npos) << text;
  EXPECT_NE(text.find("end of epoch"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep
