// SPDX-License-Identifier: Apache-2.0
// Behaviour that the test suites of torch.amp and apex ask for and that no other file here shows; named after their
// tests.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>

#include "amp/amp_testing.h"
#include "lockstep/amp/opt_level.h"
#include "lockstep/optim/adam.h"
#include "support/models.h"

namespace lockstep::amp {
namespace {

using at::Tensor;

/// The gradient of sum(op(x, other)) for an x of this dtype, made under autocast.
Tensor gradient_under_autocast(at::ScalarType dtype, const std::function<Tensor(const Tensor&, const Tensor&)>& op) {
  const auto x = at::full({4, 4}, 0.5, dtype).requires_grad_();
  const auto other = at::full({4, 4}, 0.5, at::kFloat).requires_grad_();
  Tensor y;
  {
    const autocast region(at::kCPU, at::kBFloat16);
    y = op(x, other);
  }
  y.to(at::kFloat).sum().backward();
  EXPECT_TRUE(!other.grad().defined() || other.grad().scalar_type() == at::kFloat);
  return x.grad();
}

// test_basic_casts, test_promotion: whatever the operation ran in, a gradient has the dtype of its leaf.
TEST(AmpConformance, test_basic_casts_and_promotion_gradients_keep_the_dtype_of_their_leaf) {
  const std::map<std::string, std::function<Tensor(const Tensor&, const Tensor&)>> ops{
      {"low precision, left", [](auto& x, auto& o) { return x.matmul(o); }},
      {"low precision, right", [](auto& x, auto& o) { return o.matmul(x); }},
      {"fp32", [](auto& x, auto&) { return at::softmax(x, 0); }},
      {"promoted",
       [](auto& x, auto& o) {
         return at::cat({x, o});
       }},
      {"mixed", [](auto& x, auto& o) { return x * o; }},
      {"neutral", [](auto& x, auto&) { return at::relu(x); }}};
  for (const auto& [name, op] : ops) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto gradient = gradient_under_autocast(dtype, op);
      EXPECT_EQ(gradient.scalar_type(), dtype) << name;
      EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
    }
  }
}

template <class Rnn, class Options>
void expect_trains_at_o1(Options options, const char* what) {
  Rnn net(options.num_layers(2).bidirectional(true));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  auto amp = initialize(*net, optimizer, OptLevel::O1);
  const auto before = net->parameters()[0].detach().clone();
  const auto x = lockstep::test::random({3, 2, 4}, 9).requires_grad_();
  const auto output = std::get<0>(amp.forward(net, x));
  EXPECT_EQ(output.scalar_type(), at::kFloat) << what;
  amp.scale(output.square().mean()).backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat) << what;
  EXPECT_FALSE(amp.step(optimizer).skipped()) << what;
  EXPECT_FALSE(at::equal(before, net->parameters()[0])) << what;
}

/// oneDNN has no bf16 LSTM for processors without AVX-512, and LibTorch asks it nevertheless.
struct WithoutOneDnn {
  const bool before = at::globalContext().userEnabledMkldnn();
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(before); }
};

TEST(AmpConformance, test_rnn_layers_train_under_autocast) {
  const WithoutOneDnn ours;
  expect_trains_at_o1<torch::nn::RNN>(torch::nn::RNNOptions(4, 5), "RNN");
  expect_trains_at_o1<torch::nn::GRU>(torch::nn::GRUOptions(4, 5), "GRU");
  expect_trains_at_o1<torch::nn::LSTM>(torch::nn::LSTMOptions(4, 5), "LSTM");
}

// test_checkpointing (b): three scales, of which scale i is lowered i times; saved, loaded, and lowered no further.
TEST(AmpConformance, test_checkpointing_each_scale_counts_its_own_overflows) {
  struct Weight : torch::nn::Module {
    Tensor w = register_parameter("w", at::zeros({1}));
  };
  std::vector<std::shared_ptr<Weight>> nets;
  std::vector<std::unique_ptr<torch::optim::SGD>> owned;
  Models models;
  Optimizers optimizers;
  for (int i = 0; i < 3; ++i) {
    nets.push_back(std::make_shared<Weight>());
    owned.push_back(std::make_unique<torch::optim::SGD>(nets.back()->parameters(), 1.0));
    models.push_back(*nets.back());
    optimizers.push_back(*owned.back());
  }
  auto amp = initialize(models, optimizers, OptLevel::O0, {.loss_scale = "dynamic", .num_losses = 3});
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 3; ++i) {
      const auto& net = *nets[static_cast<std::size_t>(i)];
      const auto& optimizer = optimizers[static_cast<std::size_t>(i)];
      amp.scale((net.w * (step < i ? testing::kInf : 1.f)).sum(), i, {optimizer}).backward();
      EXPECT_EQ(amp.step(optimizer).skipped(), step < i);
    }
  }
  auto state = amp.state_dict();
  for (auto& [name, tensor] : state) {
    tensor = tensor.clone();
  }
  amp.load_state_dict(state);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(amp.loss_scale(i), 65536.0 / (1 << i));
    EXPECT_EQ(nets[static_cast<std::size_t>(i)]->w.item<float>(), static_cast<float>(i - 4));
  }
}

// test_checkpointing (c): what is saved for resuming is fp32 at every level, and Adam's loss falls to a tenth.
TEST(AmpConformance, test_checkpointing_saved_masters_are_fp32_and_the_loss_falls) {
  for (const auto level : {OptLevel::O0, OptLevel::O1, OptLevel::O2}) {
    auto net = lockstep::test::mlp(3);
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
    auto amp = initialize(*net, optimizer, level);
    const auto x = lockstep::test::random({16, 6}, 4), target = lockstep::test::random({16, 3}, 5) * 0.3;
    double first = 0, last = 0;
    for (int step = 0; step < 300; ++step) {
      const auto loss = at::mse_loss(amp.forward(net, x), target);
      last = loss.item<double>();
      first = step == 0 ? last : first;
      amp.scale(loss).backward();
      amp.step(optimizer);
    }
    EXPECT_LT(last, first / 10) << to_string(level);
    for (const auto& [name, tensor] : amp.state_dict()) {
      EXPECT_FALSE(tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16) << name;
    }
  }
}

// test_add_param_group, with an optimizer that updates master and parameter in one pass.
TEST(AmpConformance, test_add_param_group_of_a_fused_optimizer) {
  const auto train = [](auto* kind) {
    using Optimizer = std::remove_pointer_t<decltype(kind)>;
    auto net = lockstep::test::mlp(3);
    const auto all = net->parameters();
    Optimizer optimizer(std::vector<Tensor>(all.begin(), all.begin() + 2), torch::optim::AdamOptions(0.01));
    auto amp = initialize(*net, optimizer, OptLevel::O2);
    for (int step = 0; step < 6; ++step) {
      if (step == 2) {
        optimizer.add_param_group(torch::optim::OptimizerParamGroup({all.begin() + 2, all.end()},
                                                                    std::make_unique<torch::optim::AdamOptions>(0.02)));
        amp.zero_grad();
      }
      amp.scale(amp.forward(net, lockstep::test::random({4, 6}, 40 + static_cast<std::uint64_t>(step))).square().mean())
          .backward();
      amp.step(optimizer);
    }
    EXPECT_EQ(amp.masters().size(), all.size());
    for (const auto& item : amp.masters()) {
      EXPECT_TRUE(at::equal(item.master.to(at::kBFloat16), item.parameter)) << item.name;
    }
    std::vector<Tensor> masters;
    for (const auto& parameter : master_params(optimizer)) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
      masters.push_back(parameter.detach());
    }
    return masters;
  };
  const auto ours = train(static_cast<optim::Adam*>(nullptr));
  const auto stock = train(static_cast<torch::optim::Adam*>(nullptr));
  ASSERT_EQ(ours.size(), stock.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    // A bf16 weight may round to its neighbour where masters differ in the last bit.
    EXPECT_TRUE(at::allclose(ours[i], stock[i], 1.0 / 128, 1.0 / 512)) << i;
  }
}

}  // namespace
}  // namespace lockstep::amp
