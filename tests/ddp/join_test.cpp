// SPDX-License-Identifier: Apache-2.0
// Uneven inputs: against one process that does the same sums, and with everything else that belongs to a step.
#include "lockstep/ddp/join.h"

#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "ddp/uneven.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/launch.h"
#include "support/models.h"
#include "support/replicas.h"

namespace lockstep::uneven {
namespace {

using test::OneNumber;

torch::nn::Sequential double_mlp(std::uint64_t seed) {
  auto net = test::mlp(seed);
  net->to(at::kDouble);
  return net;
}

at::Tensor input(int step, int rank) {
  return test::random({3, 6}, static_cast<std::uint64_t>(100 * step + rank)).to(at::kDouble);
}

at::Tensor loss(torch::nn::Sequential& net, int step, int rank) {
  return net->forward(input(step, rank)).square().mean();
}

struct Plan {
  std::vector<int> inputs;  // per rank
  JoinDivisor divisor;
};

/// One process takes the sum of all live ranks' gradients.
std::vector<at::Tensor> reference(const Plan& plan) {
  auto net = double_mlp(1);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < *std::max_element(plan.inputs.begin(), plan.inputs.end()); ++step) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    int live = 0;
    for (std::size_t rank = 0; rank < plan.inputs.size(); ++rank) {
      if (step < plan.inputs[rank]) {
        sum = sum + loss(net, step, static_cast<int>(rank));
        ++live;
      }
    }
    adam.zero_grad();
    (sum / (plan.divisor == JoinDivisor::Live ? live : static_cast<int>(plan.inputs.size()))).backward();
    adam.step();
  }
  return net->parameters();
}

std::vector<at::Tensor> moments(torch::optim::Adam& adam) {
  std::vector<at::Tensor> list;
  for (const auto& parameter : adam.param_groups()[0].params()) {
    const auto& state =
        static_cast<const torch::optim::AdamParamState&>(*adam.state().at(parameter.unsafeGetTensorImpl()));
    list.push_back(state.exp_avg());
    list.push_back(state.exp_avg_sq());
    list.push_back(at::full({1}, state.step(), at::kLong));
  }
  return list;
}

void train_unevenly(const Plan& plan, const DataParallelOptions& options) {
  const auto expected = reference(plan);
  test::run(static_cast<int>(plan.inputs.size()), [&](World& world) {
    auto net = double_mlp(1 + static_cast<std::uint64_t>(world.rank()));
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
    DistributedDataParallel ddp(net, world, options);
    const auto step = [&] {
      adam.step();
      adam.zero_grad();
    };
    const auto body = [&] {
      for (int i = 0; i < plan.inputs[static_cast<std::size_t>(world.rank())]; ++i) {
        loss(net, i, world.rank()).backward();
        step();
      }
    };
    join(ddp, body, step, {.divisor = plan.divisor});
    EXPECT_EQ(ddp.difference(), "");
    EXPECT_TRUE(test::same_on_all_ranks(world, moments(adam)));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      // Adam divides a gradient by its own size: errors of 2^-53 in a sum of nearly cancelling terms come out larger.
      EXPECT_TRUE(at::allclose(net->parameters()[i], expected[i], 1e-9, 1e-10)) << i;
    }
  });
}

TEST(Join, test_ddp_join_model_equivalence) {
  for (const auto divisor : {JoinDivisor::Initial, JoinDivisor::Live}) {
    for (const auto unused : {UnusedParameters::Error, UnusedParameters::Detect}) {
      train_unevenly({{5, 2}, divisor}, {.unused = unused, .bucket_cap_mb = 1e-5, .first_bucket_mb = 1e-5});
      train_unevenly({{0, 4, 3}, divisor}, {.unused = unused});
      train_unevenly({{3, 1, 0, 3}, divisor}, {.unused = unused, .bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4});
      train_unevenly({{2, 2, 2}, divisor}, {.unused = unused, .gradient_predivide_factor = 2});
    }
  }
}

TEST(Join, ends_at_once_where_no_rank_has_inputs) {
  for (const int ranks : {1, 2, 3}) {
    test::run(ranks, [](World& world) {
      OneNumber model(world);
      model.train(0, 1, 0, {});
      EXPECT_TRUE(model.gradients.empty());
    });
  }
}

TEST(Join, alone_it_is_the_loop_itself) {
  World world;
  OneNumber model(world);
  model.train(3, 2, 0, {.divisor = JoinDivisor::Live, .throw_on_early_end = true});
  EXPECT_EQ(model.gradients, std::vector<float>(3, 2));
}

TEST(Join, several_in_a_row_with_plain_steps_between) {
  test::run(3, [](World& world) {
    OneNumber model(world);
    for (int epoch = 0; epoch < 4; ++epoch) {
      model.gradients.clear();
      model.train((world.rank() + epoch) % 3, 3, 0, {});
      EXPECT_EQ(model.gradients, (std::vector<float>{2, 1}));
      model.backward(world.rank());
      model.step();
      EXPECT_EQ(model.ddp.difference(), "");
    }
  });
}

TEST(Join, without_a_step_parameters_and_buffers_are_those_of_the_last_rank) {
  test::run(3, [](World& world) {
    OneNumber model(world);
    const auto body = [&] {
      for (int i = 0; i < world.rank() + 1; ++i) {
        model.seen.fill_(10 * world.rank() + i);
        model.backward(1);
        model.step();
      }
    };
    join(model.ddp, body, nullptr);
    EXPECT_EQ(model.gradients.size(), static_cast<std::size_t>(world.rank() + 1));
    EXPECT_EQ(model.ddp.difference(), "");
    EXPECT_EQ(model.seen.item<float>(), 22);
    EXPECT_FLOAT_EQ(model.w.item<float>(), -2);
  });
}

TEST(Join, gradients_kept_from_before_keep_their_values) {
  test::run(2, [](World& world) {
    OneNumber model(world);
    at::Tensor kept;
    const auto body = [&] {
      for (int i = 0; i < (world.rank() == 0 ? 3 : 1); ++i) {
        model.backward(4);
        kept = i == 0 ? model.w.grad() : kept;
        model.step();
      }
    };
    join(model.ddp, body, [&] { model.step(); });
    EXPECT_EQ(kept.item<float>(), 4);
    EXPECT_EQ(model.gradients, (std::vector<float>{4, 2, 2}));
  });
}

/// An overflow after rank 1 has ended: both leave the step out and halve the scale.
TEST(Join, loss_scales_stay_together) {
  test::run(2, [](World& world) {
    OneNumber model(world);
    torch::optim::SGD sgd({model.w}, torch::optim::SGDOptions(0.1));
    amp::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
    const auto step = [&] {
      scaler.step(sgd);
      scaler.update();
      sgd.zero_grad();
    };
    const auto body = [&] {
      for (int i = 0; i < (world.rank() == 0 ? 5 : 1); ++i) {
        const double gradient = i == 2 ? std::numeric_limits<double>::infinity() : 1.0;
        scaler.scale((model.w * gradient).sum()).backward();
        step();
      }
    };
    join(model.ddp, body, step);
    EXPECT_EQ(scaler.get_scale(), 2048) << "1024, twice as much after two steps, half, twice";
    EXPECT_EQ(model.ddp.difference(), "");
    EXPECT_FLOAT_EQ(model.w.item<float>(), -0.1F * (1 + 0.5F * 3));
  });
}

/// What each rank throws, "" for nothing.
std::vector<std::string> texts_of(int ranks, const std::function<void(World&)>& fn) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  EXPECT_TRUE(test::failure_of(ranks, [&](World& world) {
    try {
      fn(world);
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(world.rank())] = error.what();
      throw;
    }
  }));
  return texts;
}

void expect_everywhere(const std::vector<std::string>& texts, const std::string& part) {
  for (const auto& text : texts) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(Join, a_rank_that_throws_in_its_loop_reaches_those_that_train_and_those_that_shadow) {
  const auto texts = texts_of(3, [](World& world) {
    OneNumber model(world);
    const auto body = [&] {
      for (int i = 0; i < (world.rank() == 2 ? 1 : 5); ++i) {
        TORCH_CHECK(world.rank() != 1 || i < 3, "lost the tape");
        model.backward(1);
        model.step();
      }
    };
    join(model.ddp, body, [&] { model.step(); });
  });
  expect_everywhere(texts, "lost the tape");
  for (const int waiting : {0, 2}) {
    EXPECT_NE(texts[static_cast<std::size_t>(waiting)].find("[rank 1]"), std::string::npos);
  }
}

TEST(Join, a_rank_that_throws_while_it_shadows_reaches_those_that_train) {
  expect_everywhere(texts_of(2,
                             [](World& world) {
                               OneNumber model(world);
                               const auto body = [&] {
                                 for (int i = 0; i < 4 && world.rank() == 0; ++i) {
                                   model.backward(1);
                                   model.step();
                                 }
                               };
                               join(model.ddp, body, [] { throw std::runtime_error("schedule is over"); });
                             }),
                    "schedule is over");
}

/// The same InputError on all ranks, and a world that can still be used.
void expect_refused(const std::function<void(World&, OneNumber&)>& attempt, const std::string& part) {
  std::vector<std::string> texts(2);
  test::run(2, [&](World& world) {
    OneNumber model(world);
    try {
      attempt(world, model);
    } catch (const InputError& error) {
      texts[static_cast<std::size_t>(world.rank())] = error.what();
    }
    model.backward(1);
    EXPECT_EQ(model.w.grad().item<float>(), 1);
  });
  expect_everywhere(texts, part);
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(Join, options_that_differ_between_ranks_are_refused) {
  expect_refused(
      [](World& world, OneNumber& model) {
        model.train(1, 1, 0, {.divisor = world.rank() == 0 ? JoinDivisor::Initial : JoinDivisor::Live});
      },
      "options of rank 1 differ from rank 0's; got divisor = Live");
}

TEST(Join, one_at_a_time) {
  std::vector<std::string> texts = texts_of(2, [](World& world) {
    OneNumber model(world);
    join(
        model.ddp, [&] { model.train(1, 1, 0, {}); }, nullptr);
  });
  expect_everywhere(texts, "this model is in a join already");
}

}  // namespace
}  // namespace lockstep::uneven
