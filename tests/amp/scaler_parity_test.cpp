// SPDX-License-Identifier: Apache-2.0
// A scaled run ends where the plain run ends. Numbers are the conformance list's (E5).
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>

#include "amp/amp_testing.h"
#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"

namespace lockstep::amp {
namespace {

using at::Tensor;
using testing::kInf;
using testing::one_parameter;
using torch::optim::SGD;

/// A small model, ten steps, one of them poisoned. `scaled` gets the
/// scaler's calls, the control run the plain ones with the poisoned step left out.
struct Training {
  torch::nn::Linear model{4, 3};
  std::vector<Tensor> inputs;
  Training() {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
    const at::NoGradGuard no_grad;
    for (auto& p : model->parameters()) {
      p.copy_(at::randn(p.sizes(), generator));
    }
    for (int i = 0; i < 10; ++i) {
      inputs.push_back(at::randn({5, 4}, generator));
    }
  }
  Tensor loss(std::size_t i) { return model(inputs[i]).square().mean(); }
  std::vector<Tensor> parameters() { return model->parameters(); }
};

constexpr std::size_t kPoisoned = 4;

using Extra = std::function<void(Training&, SGD&, GradScaler*)>;
using LossOf = std::function<Tensor(Training&, std::size_t, GradScaler*)>;

void train(Training& run, GradScaler* scaler, const LossOf& loss_of, const Extra& before_step) {
  SGD optimizer(run.parameters(), 0.1);
  for (std::size_t i = 0; i < run.inputs.size(); ++i) {
    optimizer.zero_grad();
    const auto loss = loss_of(run, i, scaler);
    if (scaler == nullptr && i == kPoisoned) {
      continue;
    }
    (scaler != nullptr ? scaler->scale(loss) : loss).backward();
    if (scaler != nullptr && i == kPoisoned) {
      run.model->weight.grad()[0][0] = kInf;
    }
    before_step(run, optimizer, scaler);
    if (scaler != nullptr) {
      scaler->step(optimizer);
      scaler->update();
    } else {
      optimizer.step();
    }
  }
}

void expect_parity(const LossOf& loss_of, const Extra& before_step) {
  Training control, scaled;
  GradScaler scaler({.init_scale = 128, .growth_interval = 4});
  train(control, nullptr, loss_of, before_step);
  train(scaled, &scaler, loss_of, before_step);
  EXPECT_EQ(scaler.get_scale(), 256);  // 128, x2 at the 4th, /2 at the 5th, x2 at the 9th
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::allclose(scaled.parameters()[i], control.parameters()[i], 0, 1e-7));
  }
}

const Extra kNothing = [](Training&, SGD&, GradScaler*) {};
const LossOf kPlainLoss = [](Training& run, std::size_t i, GradScaler*) { return run.loss(i); };

// 83
TEST(ScalerParity, autocast) {
  expect_parity(
      [](Training& run, std::size_t i, GradScaler*) {
        const autocast region(at::kCPU, at::kBFloat16);
        return run.loss(i);
      },
      kNothing);
}

// 84
TEST(ScalerParity, clipping_with_unscale_first) {
  expect_parity(kPlainLoss, [](Training& run, SGD& optimizer, GradScaler* scaler) {
    if (scaler != nullptr) {
      scaler->unscale_(optimizer);
    }
    torch::nn::utils::clip_grad_norm_(run.parameters(), 0.2);
  });
}

TEST(ScalerParity, clipping_of_scaled_gradients_by_a_scaled_bound) {
  expect_parity(kPlainLoss, [](Training& run, SGD&, GradScaler* scaler) {
    torch::nn::utils::clip_grad_norm_(run.parameters(), 0.2 * (scaler != nullptr ? scaler->get_scale() : 1));
  });
}

TEST(ScalerParity, gradient_penalty) {
  expect_parity(
      [](Training& run, std::size_t i, GradScaler* scaler) {
        const auto loss = run.loss(i);
        const auto scaled = scaler != nullptr ? scaler->scale(loss) : loss;
        auto gradients = torch::autograd::grad({scaled}, run.parameters(), {}, {}, /*create_graph=*/true);
        auto penalty = at::zeros({});
        for (auto& gradient : gradients) {
          gradient = scaler != nullptr ? gradient / scaler->scale_tensor() : gradient;
          penalty = penalty + gradient.square().sum();
        }
        return loss + 0.1 * penalty.sqrt();
      },
      kNothing);
}

TEST(ScalerParity, accumulation) {
  expect_parity(kPlainLoss, [](Training& run, SGD&, GradScaler* scaler) {
    const auto loss = run.loss(0) / 2;
    (scaler != nullptr ? scaler->scale(loss) : loss).backward();
  });
}

// 85
TEST(ScalerParity, what_unscale_found_counts_even_if_gradients_are_replaced_before_step) {
  GradScaler scaler({.init_scale = 4});
  for (const bool on_device : {false, true}) {
    const auto p = one_parameter();
    SGD stock({p}, 1.0);
    testing::DeviceSgd device({p}, 1.0);
    torch::optim::Optimizer& optimizer = on_device ? static_cast<torch::optim::Optimizer&>(device) : stock;
    scaler.scale((p * kInf).sum()).backward();
    scaler.unscale_(optimizer);
    p.mutable_grad() = at::ones({1});
    EXPECT_TRUE(scaler.step(optimizer).skipped());
    scaler.update();
    EXPECT_EQ(p.item<float>(), 1);
  }
}

}  // namespace
}  // namespace lockstep::amp
