// SPDX-License-Identifier: Apache-2.0
// Fused optimizers under GradScaler and opt levels, beside stock ones under the same.
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/opt_level.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/sgd.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr int kLevelSteps = 10;
constexpr int kBadStep = 4;

/// Linear, BatchNorm, Linear: at O2 its BatchNorm's parameters stay fp32. One weight gets no gradient. A bias before
/// the BatchNorm would have rounding errors for a gradient, and Adam would take steps of full length along them.
struct Net : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(6, 9).bias(false)));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(9));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(9, 3));
  at::Tensor unused = register_parameter("unused", at::ones({5}));

  Net() {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(21);
    const at::NoGradGuard no_grad;
    for (auto& p : parameters()) {
      p.copy_(at::randn(p.sizes(), generator) * 0.5);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    // Modules compute in their own dtype.
    const auto hidden = norm(first(x).to(norm->running_mean.scalar_type())).relu();
    return last(hidden.to(last->weight.scalar_type()));
  }
};

at::Tensor loss_of(const at::Tensor& output, int step) {
  const auto loss = output.to(at::kFloat).square().mean();
  return step == kBadStep ? loss * std::numeric_limits<float>::infinity() : loss;
}

at::Tensor batch(int step) {
  return at::randn({8, 6}, at::make_generator<at::CPUGeneratorImpl>(500 + static_cast<std::uint64_t>(step)));
}

template <class Optimizer, class Options>
Tensors train_at(amp::OptLevel level, const Options& options) {
  Net net;
  Optimizer optimizer(net.parameters(), options);
  auto mixed =
      amp::initialize(net, optimizer, level, {.low_precision = at::kBFloat16, .loss_scale = amp::LossScale(1024.0)});
  int skips = 0;
  for (int step = 0; step < kLevelSteps; ++step) {
    mixed.scale(loss_of(mixed.forward(net, batch(step)), step)).backward();
    skips += mixed.step(optimizer).skipped() ? 1 : 0;
  }
  EXPECT_EQ(skips, 1);
  auto result = detached(net.parameters());
  for (const auto& m : mixed.masters()) {
    EXPECT_TRUE(same_bits(m.master.detach().to(at::kBFloat16), m.parameter)) << m.name;
    result.push_back(m.master.detach());
  }
  return result;
}

TEST(WithAmp, sgd_equals_stock_sgd_at_every_level_bit_for_bit) {
  for (const auto level : {amp::OptLevel::O0, amp::OptLevel::O1, amp::OptLevel::O2}) {
    const auto options = SGDOptions(0.05).momentum(0.9).weight_decay(0.01);
    expect_same_bits(train_at<SGD>(level, options), train_at<torch::optim::SGD>(level, options), amp::to_string(level));
  }
}

TEST(WithAmp, adamw_equals_stock_adamw_at_every_level_within_rounding) {
  for (const auto level : {amp::OptLevel::O0, amp::OptLevel::O1, amp::OptLevel::O2}) {
    const auto ours = train_at<AdamW>(level, AdamWOptions(0.01));
    const auto theirs = train_at<torch::optim::AdamW>(level, AdamWOptions(0.01));
    // A bf16 parameter may round to its neighbour where masters differ in their last bit.
    expect_close(ours, theirs, level == amp::OptLevel::O2 ? 1.0 / 128 : 1e-4, amp::to_string(level));
  }
}

TEST(WithAmp, low_precision_alone_trains_with_fp32_arithmetic) {
  const auto parameters = train_at<AdamW>(amp::OptLevel::O3, AdamWOptions(0.01));
  for (const auto& p : parameters) {
    EXPECT_EQ(p.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::isfinite(p).all().item<bool>());
  }
}

TEST(WithAmp, a_shared_optimizer_state_survives_the_move_to_masters) {
  Net net;
  AdamW optimizer(net.parameters(), AdamWOptions(0.01));
  loss_of(net.forward(batch(0)), 0).backward();
  optimizer.step();
  optimizer.zero_grad();
  auto mixed = amp::initialize(net, optimizer, amp::OptLevel::O2, {.low_precision = at::kBFloat16});
  mixed.scale(loss_of(mixed.forward(net, batch(1)), 1)).backward();
  mixed.step(optimizer);
  for (const auto& m : mixed.masters()) {
    if (m.name.find("unused") == std::string::npos) {
      auto& state = *optimizer.state().at(m.master.unsafeGetTensorImpl());
      EXPECT_EQ(static_cast<torch::optim::AdamWParamState&>(state).step(), 2) << m.name;
    }
  }
}

}  // namespace
}  // namespace lockstep::optim
