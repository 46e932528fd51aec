// SPDX-License-Identifier: Apache-2.0
// What the levels stand for, what initialize does to a model, and what it refuses.
#include "lockstep/amp/opt_level.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/lbfgs.h>

#include "amp/amp_testing.h"

namespace lockstep::amp {
namespace {

using at::Tensor;
using testing::error_of;
using testing::mentions;
using torch::optim::SGD;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr}, plain{nullptr};
  Tensor table, tied;
  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    plain = register_module("plain", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(4).affine(false)));
    second = register_module("second", torch::nn::Linear(4, 2));
    table = register_buffer("table", at::arange(3));
    tied = register_parameter("tied", first->weight);
  }
  Tensor forward(const Tensor& x) { return second(plain(norm(first(x)))); }
};
TORCH_MODULE(Net);

const std::vector<OptLevel> kLevels{OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3};

/// The error of initialising a fresh Net.
std::string refusal(OptLevel level, const AmpOptions& options) {
  return error_of([&] {
    Net net;
    SGD optimizer(net->parameters(), 0.1);
    initialize(*net, optimizer, level, options);
  });
}

TEST(OptLevel, properties_are_those_of_the_table) {
  const auto o0 = properties_of(OptLevel::O0, at::kHalf), o1 = properties_of(OptLevel::O1, at::kHalf);
  const auto o2 = properties_of(OptLevel::O2, at::kHalf), o3 = properties_of(OptLevel::O3, at::kHalf);
  EXPECT_TRUE(o0.cast_model_type == at::kFloat && !o1.cast_model_type && o2.cast_model_type == at::kHalf &&
              o3.cast_model_type == at::kHalf);
  EXPECT_TRUE(!o0.patch_torch_functions && o1.patch_torch_functions && !o2.patch_torch_functions &&
              !o3.patch_torch_functions);
  EXPECT_TRUE(!o0.keep_batchnorm_fp32 && !o1.keep_batchnorm_fp32 && o2.keep_batchnorm_fp32 == true &&
              o3.keep_batchnorm_fp32 == false);
  EXPECT_TRUE(o0.master_weights == false && !o1.master_weights && o2.master_weights == true &&
              o3.master_weights == false);
  EXPECT_TRUE(o0.loss_scale == LossScale(1.0) && o1.loss_scale.dynamic() && o2.loss_scale.dynamic() &&
              o3.loss_scale == LossScale(1.0));
}

TEST(OptLevel, names_are_parsed) {
  for (const auto level : kLevels) {
    EXPECT_EQ(parse_opt_level(to_string(level)), level);
  }
  EXPECT_TRUE(mentions(error_of([] { parse_opt_level("02"); }), "the prefix is the letter O, not the number zero"));
}

TEST(OptLevel, loss_scales_are_parsed) {
  EXPECT_TRUE(LossScale("dynamic").dynamic());
  EXPECT_EQ(LossScale("128.0").value(), 128);
  for (const auto* text : {"", "fast", "128x", "-1", "0", "inf", "nan"}) {
    EXPECT_TRUE(mentions(error_of([&] { LossScale scale(text); }), "not a loss scale")) << text;
  }
}

TEST(OptLevel, overrides_that_do_not_suit_the_level_are_refused) {
  EXPECT_TRUE(mentions(refusal(OptLevel::O1, {.cast_model_type = at::kHalf}), "got cast_model_type = Half"));
  EXPECT_EQ(refusal(OptLevel::O1, {.cast_model_type = at::kFloat}), "no error");
  EXPECT_TRUE(mentions(refusal(OptLevel::O2, {.cast_model_type = at::kDouble}), "cast_model_type is out of range"));
  EXPECT_TRUE(mentions(refusal(OptLevel::O2, {.patch_torch_functions = true}), "only O1 runs forward under autocast"));
  EXPECT_TRUE(mentions(refusal(OptLevel::O1, {.keep_batchnorm_fp32 = true}), "got keep_batchnorm_fp32 at O1"));
  EXPECT_TRUE(mentions(refusal(OptLevel::O1, {.master_weights = false}), "got master_weights at O1"));
  EXPECT_TRUE(mentions(refusal(OptLevel::O2, {.low_precision = at::kFloat}), "low_precision is out of range"));
  EXPECT_TRUE(mentions(refusal(OptLevel::O2, {.num_losses = 0}), "num_losses is out of range"));
  EXPECT_TRUE(mentions(refusal(OptLevel::O2, {.min_loss_scale = 0.0}), "min_scale is out of range"));
  EXPECT_TRUE(mentions(refusal(OptLevel::O2, {.min_loss_scale = 8, .max_loss_scale = 4}), "max_scale is out of range"));
}

TEST(OptLevel, O2_casts_all_but_batchnorm_and_integers_in_place) {
  for (const auto low : {at::kHalf, at::kBFloat16}) {
    Net net;
    const auto before = net->parameters();
    SGD optimizer(net->parameters(), 0.1);
    const auto amp = initialize(*net, optimizer, OptLevel::O2, {.low_precision = low});
    EXPECT_EQ(net->first->weight.scalar_type(), low);
    EXPECT_EQ(net->norm->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kFloat);
    EXPECT_EQ(net->plain->running_var.scalar_type(), at::kFloat);
    EXPECT_EQ(net->norm->num_batches_tracked.scalar_type(), at::kLong);
    EXPECT_EQ(net->table.scalar_type(), at::kLong);
    EXPECT_TRUE(net->tied.is_same(net->first->weight));
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(net->parameters()[i].is_same(before[i]));
    }
    const auto output = amp.forward(net, at::ones({2, 4}));
    EXPECT_EQ(output.scalar_type(), at::kFloat);
  }
}

TEST(OptLevel, O2_puts_masters_into_the_groups_once_for_tied_parameters) {
  Net net;
  SGD optimizer(net->parameters(), 0.1);  // the tied weight is listed twice
  const auto amp = initialize(*net, optimizer, OptLevel::O2);
  const auto masters = amp.masters();
  const std::vector<std::string> names{"tied", "first.bias", "second.weight", "second.bias"};
  ASSERT_EQ(masters.size(), names.size());
  const auto parameters = master_params(optimizer);
  EXPECT_EQ(parameters.size(), 6);  // and BatchNorm's two
  for (std::size_t i = 0; i < masters.size(); ++i) {
    EXPECT_EQ(masters[i].name, names[i]);
    EXPECT_EQ(masters[i].master.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(masters[i].master.to(at::kBFloat16), masters[i].parameter));
    EXPECT_TRUE(masters[i].master.is_leaf() && masters[i].master.requires_grad());
    EXPECT_EQ(masters[i].master.storage().data(), masters[0].master.storage().data());
    EXPECT_TRUE(std::any_of(parameters.begin(), parameters.end(),
                            [&](const Tensor& p) { return p.is_same(masters[i].master); }));
  }
}

TEST(OptLevel, O3_casts_everything_and_O0_to_fp32_and_O1_nothing) {
  const auto dtypes_after = [](OptLevel level, at::ScalarType start) {
    Net net;
    net->to(start);
    net->table.set_data(at::arange(3));
    SGD optimizer(net->parameters(), 0.1);
    initialize(*net, optimizer, level);
    return std::tuple(net->first->weight.scalar_type(), net->norm->running_var.scalar_type(), net->table.scalar_type());
  };
  EXPECT_EQ(dtypes_after(OptLevel::O3, at::kFloat), std::tuple(at::kBFloat16, at::kBFloat16, at::kLong));
  EXPECT_EQ(dtypes_after(OptLevel::O0, at::kDouble), std::tuple(at::kFloat, at::kFloat, at::kLong));
  EXPECT_EQ(dtypes_after(OptLevel::O1, at::kFloat), std::tuple(at::kFloat, at::kFloat, at::kLong));
}

TEST(OptLevel, further_modules_stay_in_fp32_where_the_user_says_so) {
  Net net;
  SGD optimizer(net->parameters(), 0.1);
  AmpOptions options;
  options.keep_fp32 = [&](const torch::nn::Module& module) { return &module == net->second.get(); };
  initialize(*net, optimizer, OptLevel::O2, options);
  EXPECT_EQ(net->second->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(net->first->weight.scalar_type(), at::kBFloat16);
}

TEST(OptLevel, instance_norm_keeps_its_running_statistics_in_fp32) {
  torch::nn::InstanceNorm1d norm(torch::nn::InstanceNormOptions(3).track_running_stats(true));
  initialize(Models{*norm}, {}, OptLevel::O2);
  EXPECT_EQ(norm->running_var.scalar_type(), at::kFloat);
}

TEST(OptLevel, O1_runs_forward_under_autocast_only) {
  torch::nn::Linear net(4, 4);
  SGD optimizer(net->parameters(), 0.1);
  const auto amp = initialize(*net, optimizer, OptLevel::O1);
  at::ScalarType inside = at::kFloat;
  const auto output = amp.forward(
      [&](const Tensor& x) {
        const auto y = net(x);
        inside = y.scalar_type();
        return y;
      },
      at::ones({2, 4}));
  EXPECT_EQ(inside, at::kBFloat16);
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_EQ(net(at::ones({2, 4})).scalar_type(), at::kFloat);
  EXPECT_EQ(net->weight.scalar_type(), at::kFloat);
}

TEST(OptLevel, forward_casts_tensors_in_containers_and_takes_any_kind_of_model) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
  SGD optimizer(net->parameters(), 0.1);
  const auto amp = initialize(*net, optimizer, OptLevel::O2, {.cast_model_outputs = at::kHalf});
  EXPECT_EQ(amp.forward(net, at::ones({1, 4})).scalar_type(), at::kHalf);
  EXPECT_EQ(amp.forward(*net, at::ones({1, 4})).scalar_type(), at::kHalf);
  const auto pair = amp.forward(
      [](const std::pair<Tensor, Tensor>& batch, int k) {
        EXPECT_EQ(batch.first.scalar_type(), at::kBFloat16);
        EXPECT_EQ(batch.second.scalar_type(), at::kLong);
        return std::make_tuple(batch.first * k, batch.second);
      },
      std::pair(at::ones({1}), at::ones({1}, at::kLong)), 2);
  EXPECT_EQ(std::get<0>(pair).scalar_type(), at::kHalf);
  EXPECT_EQ(std::get<1>(pair).scalar_type(), at::kLong);
}

TEST(OptLevel, recurrent_modules_run_after_the_cast) {
  torch::nn::LSTM net(torch::nn::LSTMOptions(3, 4));
  SGD optimizer(net->parameters(), 0.1);
  auto amp = initialize(*net, optimizer, OptLevel::O2);
  const auto [output, state] = amp.forward(net, at::ones({2, 1, 3}));
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  amp.scale(output.sum()).backward();
  EXPECT_FALSE(amp.step(optimizer).skipped());
}

TEST(OptLevel, disabled_it_touches_nothing) {
  Net net;
  net->to(at::kDouble);
  SGD optimizer(net->parameters(), 0.1);
  auto amp = initialize(*net, optimizer, OptLevel::O2, {.enabled = false});
  EXPECT_EQ(net->first->weight.scalar_type(), at::kDouble);
  const auto output = amp.forward(net, at::ones({2, 4}, at::kDouble));
  EXPECT_EQ(output.scalar_type(), at::kDouble);
  const auto loss = output.square().sum();
  EXPECT_TRUE(amp.scale(loss).is_same(loss));
  const auto before = net->second->bias.clone();
  loss.backward();
  amp.unscale_(optimizer);
  EXPECT_FALSE(amp.step(optimizer).skipped());
  EXPECT_FALSE(at::equal(net->second->bias, before));
  EXPECT_EQ(amp.describe(), "mixed precision is disabled\n");
}

TEST(OptLevel, describe_shows_the_properties) {
  Net net;
  SGD optimizer(net->parameters(), 0.1);
  EXPECT_EQ(initialize(*net, optimizer, OptLevel::O2, {.loss_scale = "128"}).describe(),
            "opt level O2 (low precision: BFloat16)\n"
            "  cast_model_type        BFloat16\n"
            "  patch_torch_functions  0\n"
            "  keep_batchnorm_fp32    1\n"
            "  master_weights         1\n"
            "  loss_scale             128\n");
}

// Order.

TEST(InitializeRefuses, a_model_that_is_initialised_already_while_the_first_handle_lives) {
  for (const auto level : kLevels) {
    Net net;
    SGD optimizer(net->parameters(), 0.1);
    {
      const auto amp = initialize(*net, optimizer, level);
      const auto text = error_of([&] { initialize(*net, optimizer, level); });
      EXPECT_TRUE(mentions(text, "is initialised already") || mentions(text, "is not in fp32")) << text;
    }
    if (level == OptLevel::O0 || level == OptLevel::O1) {
      EXPECT_NO_THROW(initialize(*net, optimizer, level));
    }
  }
}

struct Hook : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable&) override {}
};

TEST(InitializeRefuses, a_model_that_is_wrapped_already) {
  Net net;
  SGD optimizer(net->parameters(), 0.1);
  torch::autograd::impl::set_post_acc_grad_hooks(net->second->bias, std::make_unique<Hook>());
  const auto text = error_of([&] { initialize(*net, optimizer, OptLevel::O2); });
  EXPECT_TRUE(mentions(text, "'second.bias' has a gradient hook: the model is wrapped already")) << text;
  EXPECT_TRUE(mentions(text, "initialize first, then wrap")) << text;
  EXPECT_EQ(net->first->weight.scalar_type(), at::kFloat) << "nothing may have changed";
}

TEST(InitializeRefuses, a_model_that_is_cast_already) {
  Net net;
  net->second->weight.set_data(net->second->weight.to(at::kHalf));
  SGD optimizer(net->parameters(), 0.1);
  EXPECT_TRUE(mentions(error_of([&] { initialize(*net, optimizer, OptLevel::O2); }),
                       "'second.weight' is not in fp32; got Half"));
}

TEST(InitializeRefuses, optimizers_that_do_not_belong) {
  Net net;
  torch::nn::Linear other(2, 2);
  SGD optimizer(net->parameters(), 0.1), foreign(other->parameters(), 0.1);
  EXPECT_TRUE(mentions(error_of([&] { initialize(*net, foreign, OptLevel::O2); }),
                       "was built for tensors that are not the models' parameters"));
  EXPECT_TRUE(mentions(error_of([&] {
                         initialize(Models{*net}, Optimizers{optimizer, optimizer}, OptLevel::O2);
                       }),
                       "should only be passed to initialize once"));
  torch::optim::LBFGS lbfgs(net->parameters());
  EXPECT_TRUE(mentions(error_of([&] { initialize(*net, lbfgs, OptLevel::O2); }), "LBFGS"));
  auto amp = initialize(*net, optimizer, OptLevel::O2);
  EXPECT_TRUE(mentions(error_of([&] { amp.step(foreign); }), "was not given to initialize"));
}

}  // namespace
}  // namespace lockstep::amp
