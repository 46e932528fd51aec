// SPDX-License-Identifier: Apache-2.0
// fp32 masters: never stale, never lost, one a parameter. Letters and numbers name the faults of other systems.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <sstream>

#include "amp/amp_testing.h"
#include "amp/one_weight.h"
#include "lockstep/amp/opt_level.h"

namespace lockstep::amp {
namespace {

using at::Tensor;
using testing::error_of;
using testing::iterate;
using testing::kInf;
using testing::mentions;
using testing::One;
using testing::weight_of;
using torch::optim::Adam;
using torch::optim::SGD;

TEST(Masters, a_write_to_some_elements_keeps_the_other_masters) {
  One net(1.0f, 4);
  SGD optimizer(net->parameters(), 1.0);
  auto amp = initialize(*net, optimizer, OptLevel::O2);
  iterate(amp, optimizer, net, 1.0 / 1024);
  net->weight.detach()[2] = 3;
  iterate(amp, optimizer, net, 0);
  const auto master = amp.masters()[0].master.detach();
  EXPECT_TRUE(at::equal(master, at::tensor({1 - 1 / 1024.f, 1 - 1 / 1024.f, 3.f, 1 - 1 / 1024.f})));
}

TEST(Masters, an_update_between_forward_and_backward_is_caught_by_autograd) {
  One net(1.0f);
  SGD optimizer(net->parameters(), 1.0);
  auto amp = initialize(*net, optimizer, OptLevel::O2);
  amp.scale(amp.forward(net, at::ones({1}))).backward();
  const auto late = amp.forward([&](const Tensor& x) { return (net->weight.square() * x).sum(); }, at::ones({1}));
  amp.step(optimizer);
  EXPECT_THROW(late.backward(), c10::Error);
}

TEST(Masters, a_skipped_step_changes_nothing_and_drops_the_gradients) {
  One net(1.0f);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.1));
  auto amp = initialize(*net, optimizer, OptLevel::O2);
  amp.scale(amp.forward(net, at::full({1}, kInf))).backward();
  EXPECT_TRUE(amp.step(optimizer).skipped());
  EXPECT_EQ(weight_of(net), 1.0f);
  EXPECT_TRUE(optimizer.state().empty()) << "step counts and moments stay";
  EXPECT_FALSE(net->weight.grad().defined());
  EXPECT_EQ(amp.loss_scale(), 32768);
}

TEST(Masters, gradients_can_be_zeroed_in_every_way_at_every_level) {
  for (const auto level : {OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3}) {
    for (int way = 0; way < 8; ++way) {
      SCOPED_TRACE(to_string(level) + " way " + std::to_string(way));
      One net(0.0f);
      SGD optimizer(net->parameters(), 1.0);
      auto amp = initialize(*net, optimizer, level);
      amp.scale(amp.forward(net, at::ones({1}))).backward();  // to be dropped
      switch (way) {
        case 0:
          optimizer.zero_grad();
          break;
        case 1:
          optimizer.zero_grad(false);
          break;
        case 2:
          net->zero_grad();
          break;
        case 3:
          net->zero_grad(false);
          break;
        case 4:
          amp.zero_grad();
          break;
        case 5:
          amp.zero_grad(false);
          break;
        case 6:
          net->weight.mutable_grad().reset();
          break;
        case 7:
          amp.unscale_(optimizer);
          optimizer.zero_grad();
          break;
        default:
          break;
      }
      EXPECT_NO_THROW(iterate(amp, optimizer, net, 2));
      EXPECT_EQ(weight_of(net), -2);
      EXPECT_NO_THROW(iterate(amp, optimizer, net, 2));  // the step has taken its gradients with it
      EXPECT_EQ(weight_of(net), -4);
    }
  }
}

TEST(Masters, stepping_past_the_handle_is_an_error_not_a_silent_nothing) {
  One net(0.0f, 3);
  SGD optimizer(net->parameters(), 1.0);
  auto amp = initialize(*net, optimizer, OptLevel::O2);
  amp.scale(amp.forward(net, at::ones({1}))).backward();
  EXPECT_THROW(optimizer.step(), c10::Error);
}

TEST(Masters, gradients_accumulate_over_several_backwards) {
  for (const bool fp32 : {false, true}) {
    One net(0.0f);
    SGD optimizer(net->parameters(), 1.0);
    auto amp = initialize(*net, optimizer, OptLevel::O2, {.loss_scale = 4.0, .fp32_gradients = fp32});
    for (int i = 0; i < 300; ++i) {
      amp.scale(amp.forward(net, at::ones({1}))).backward();
    }
    EXPECT_EQ(net->weight.grad().scalar_type(), fp32 ? at::kFloat : at::kBFloat16);
    amp.step(optimizer);
    // In bf16 the scaled sum stops at 1024: adding 4 to it is lost.
    EXPECT_EQ(amp.masters()[0].master[0].item<float>(), fp32 ? -300 : -256);
  }
}

TEST(Masters, groups_added_later_get_masters) {
  struct Two : torch::nn::Module {
    Tensor a, b;
    Two() {
      a = register_parameter("a", at::zeros({2}));
      b = register_parameter("b", at::zeros({2}));
    }
  } net;
  torch::optim::SGD optimizer({net.a}, torch::optim::SGDOptions(0.5).momentum(0.5));
  auto amp = initialize(net, optimizer, OptLevel::O2);
  const auto iterate_both = [&] {
    amp.scale((net.a.sum() + net.b.sum()).to(at::kFloat)).backward();
    amp.step(optimizer);
  };
  iterate_both();
  net.b.mutable_grad().reset();
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      {net.b}, std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(1.0).momentum(0.5))));
  iterate_both();
  iterate_both();
  EXPECT_EQ(net.a[0].item<float>(), -0.5f * (1 + 1.5f + 1.75f));
  EXPECT_EQ(net.b[0].item<float>(), -1.0f * (1 + 1.5f));
  EXPECT_EQ(optimizer.param_groups()[1].params()[0].scalar_type(), at::kFloat);
  EXPECT_EQ(amp.masters().size(), 2);
}

TEST(Masters, a_frozen_parameter_can_be_unfrozen) {
  torch::nn::Linear net(2, 1);
  net->weight.set_requires_grad(false);
  SGD optimizer(net->parameters(), 0.5);
  auto amp = initialize(*net, optimizer, OptLevel::O2);
  const auto before = net->weight.clone();
  const auto iterate_net = [&] {
    amp.scale(amp.forward(net, at::ones({1, 2})).sum()).backward();
    amp.step(optimizer);
  };
  iterate_net();
  EXPECT_TRUE(at::equal(net->weight, before));
  net->weight.set_requires_grad(true);
  iterate_net();
  EXPECT_TRUE(at::equal(net->weight.to(at::kFloat), (before.to(at::kFloat) - 0.5).to(at::kBFloat16).to(at::kFloat)));
}

TEST(Masters, sparse_gradients_are_summed_in_fp32) {
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(4, 1).sparse(true));
  net->weight.detach().fill_(0);
  SGD optimizer(net->parameters(), 1.0);
  auto amp = initialize(*net, optimizer, OptLevel::O2, {.low_precision = at::kHalf, .loss_scale = 1.0});
  const auto output = amp.forward([&](const Tensor& i) { return net(i) * 40000; }, at::tensor({2, 2}, at::kLong));
  amp.scale(output.sum()).backward();
  EXPECT_FALSE(amp.step(optimizer).skipped());
  EXPECT_EQ(amp.masters()[0].master[2][0].item<float>(), -80000);
}

/// Saves and loads by torch::save, as a user would.
template <class T>
std::string saved(const T& value) {
  std::ostringstream stream;
  torch::save(value, stream);
  return stream.str();
}
template <class T>
void load(T& value, const std::string& text) {
  std::istringstream stream(text);
  torch::load(value, stream);
}

std::map<std::string, Tensor> cloned(std::map<std::string, Tensor> state) {
  for (auto& [name, tensor] : state) {
    tensor = tensor.clone();
  }
  return state;
}

// N1: masters rebuilt from low precision weights, moments mismatched: the loss jumps.
TEST(Masters, N1_resuming_is_bitwise_in_any_order_of_loading) {
  const auto inputs = at::randn({8, 3}, at::make_generator<at::CPUGeneratorImpl>(5));
  for (const auto level : {OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3}) {
    struct Session {
      torch::nn::Linear net{3, 2};
      Adam optimizer{net->parameters(), torch::optim::AdamOptions(0.01)};
      Amp amp;
      explicit Session(OptLevel level) : amp(initialize(*net, optimizer, level)) {}
      void train(const Tensor& x) {
        for (int i = 0; i < 5; ++i) {
          amp.scale(amp.forward(net, x).square().mean()).backward();
          amp.step(optimizer);
        }
      }
    };
    Session whole(level);
    whole.train(inputs);
    const auto net_file = saved(whole.net);
    const auto optimizer_file = saved(whole.optimizer);
    const auto amp_state = cloned(whole.amp.state_dict());
    whole.train(inputs);
    for (const bool amp_first : {false, true}) {
      Session resumed(level);
      amp_first ? resumed.amp.load_state_dict(amp_state) : load(resumed.net, net_file);
      load(resumed.optimizer, optimizer_file);
      amp_first ? load(resumed.net, net_file) : resumed.amp.load_state_dict(amp_state);
      resumed.train(inputs);
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(at::equal(resumed.net->parameters()[i], whole.net->parameters()[i])) << to_string(level);
        EXPECT_TRUE(at::equal(master_params(resumed.optimizer)[i], master_params(whole.optimizer)[i]));
      }
      EXPECT_EQ(saved(resumed.optimizer).size(), saved(whole.optimizer).size());
      const auto a = resumed.amp.state_dict(), b = whole.amp.state_dict();
      for (const auto& [name, tensor] : a) {
        EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
      }
    }
  }
}

TEST(Masters, a_state_that_does_not_fit_is_refused_and_changes_nothing) {
  One net(1.0f);
  SGD optimizer(net->parameters(), 1.0);
  auto amp = initialize(*net, optimizer, OptLevel::O2);
  const auto before = cloned(amp.state_dict());
  const auto with = [&](const std::string& name, const Tensor& value) {
    auto state = cloned(before);
    state[name] = value;
    return error_of([&] { amp.load_state_dict(state); });
  };
  auto lacking = before;
  lacking.erase("master.weight");
  EXPECT_TRUE(mentions(error_of([&] { amp.load_state_dict(lacking); }), "the state lacks 'master.weight'"));
  EXPECT_TRUE(mentions(with("master.other", at::ones({1})), "the state has an unknown 'master.other'"));
  EXPECT_TRUE(mentions(with("master.weight", at::ones({2})), "'master.weight' does not fit"));
  EXPECT_TRUE(mentions(with("master.weight", at::ones({1}, at::kHalf)), "does not fit"));
  EXPECT_TRUE(mentions(with("loss_scaler0.scale", at::scalar_tensor(-1, at::kDouble)), "the scale is out of range"));
  for (const auto& [name, tensor] : amp.state_dict()) {
    EXPECT_TRUE(at::equal(tensor, before.at(name)));
  }
}

}  // namespace
}  // namespace lockstep::amp
