// SPDX-License-Identifier: Apache-2.0
// Several models, optimizers, losses and scales: the poisoned iteration is left out for exactly the optimizers
// involved, and the rest equals a plain run (after apex's test_multiple_models_optimizers_losses).
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "amp/amp_testing.h"
#include "lockstep/amp/opt_level.h"

namespace lockstep::amp {
namespace {

using at::Tensor;
using testing::kInf;
using torch::optim::SGD;

struct Weight : torch::nn::Module {
  Tensor value;
  explicit Weight(float start) { value = register_parameter("value", at::full({2}, start)); }
  Tensor forward(const Tensor& x) { return (value * x).sum(); }
};

struct Case {
  OptLevel level;
  std::size_t optimizers;
  int scalers;
  int poisoned_iteration;  // -1: none
  int poisoned_loss;       // reaches model 0 or model 2
  int zeroing;             // 0: none, 1: models, 2: optimizers
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << to_string(c.level) << ", optimizers " << c.optimizers << ", scalers " << c.scalers << ", iteration "
             << c.poisoned_iteration << ", loss " << c.poisoned_loss << ", zeroing " << c.zeroing;
}

constexpr int kIterations = 4;

torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(0.25).momentum(0.5);
}

/// Three models; loss 0 is of models 0 and 1, loss 1 of models 1 and 2. All numbers are exact in fp16.
struct Setting {
  std::vector<std::shared_ptr<Weight>> models;
  std::vector<std::unique_ptr<SGD>> optimizers;

  explicit Setting(std::size_t count) {
    for (const float start : {1.f, 2.f, -1.f}) {
      models.push_back(std::make_shared<Weight>(start));
    }
    if (count == 1) {
      optimizers.push_back(
          std::make_unique<SGD>(std::vector{models[0]->value, models[1]->value, models[2]->value}, sgd_options()));
    } else {
      optimizers.push_back(std::make_unique<SGD>(std::vector{models[0]->value}, sgd_options()));
      optimizers.push_back(std::make_unique<SGD>(std::vector{models[1]->value, models[2]->value}, sgd_options()));
    }
  }
  std::size_t owner(int loss) const { return loss == 0 ? 0 : optimizers.size() - 1; }
};

std::vector<Tensor> plain_run(const Case& c) {
  Setting s(c.optimizers);
  for (int i = 0; i < kIterations; ++i) {
    for (auto& optimizer : s.optimizers) {
      optimizer->zero_grad();
    }
    const auto x = at::full({2}, static_cast<float>(i + 1));
    (s.models[0]->forward(x) + s.models[1]->forward(x)).backward();
    (s.models[1]->forward(x) + s.models[2]->forward(x)).backward();
    for (std::size_t k = 0; k < s.optimizers.size(); ++k) {
      if (i != c.poisoned_iteration || k != s.owner(c.poisoned_loss)) {
        s.optimizers[k]->step();
      }
    }
  }
  return {s.models[0]->value, s.models[1]->value, s.models[2]->value};
}

void zero(const Case& c, Setting& s) {
  for (auto& model : s.models) {
    c.zeroing == 1 ? model->zero_grad() : void();
  }
  for (auto& optimizer : s.optimizers) {
    c.zeroing == 2 ? optimizer->zero_grad() : void();
  }
}

Amp start(const Case& c, Setting& s) {
  Optimizers optimizers;
  for (auto& optimizer : s.optimizers) {
    optimizers.push_back(*optimizer);
  }
  auto amp = initialize(Models{*s.models[0], *s.models[1], *s.models[2]}, optimizers, c.level,
                        {.low_precision = at::kHalf, .loss_scale = "dynamic", .num_losses = c.scalers});
  auto state = amp.state_dict();
  state["loss_scaler0.scale"].fill_(4);
  if (c.scalers == 2) {
    state["loss_scaler1.scale"].fill_(16);
  }
  amp.load_state_dict(state);
  return amp;
}

void iterate(const Case& c, Setting& s, Amp& amp, int i) {
  zero(c, s);
  const auto x = at::full({2}, static_cast<float>(i + 1));
  Optimizers first, second{*s.optimizers.back()};  // loss 1 only reaches the last optimizer
  amp.scale(amp.forward(s.models[0], x) + amp.forward(s.models[1], x), 0, first).backward();
  amp.scale(amp.forward(s.models[1], x) + amp.forward(s.models[2], x), c.scalers - 1, second).backward();
  if (i == c.poisoned_iteration) {
    s.models[c.poisoned_loss == 0 ? 0 : 2]->value.grad()[1] = kInf;
  }
  for (std::size_t k = 0; k < s.optimizers.size(); ++k) {
    const bool poisoned = i == c.poisoned_iteration && k == s.owner(c.poisoned_loss);
    EXPECT_EQ(amp.step(*s.optimizers[k]).skipped(), poisoned) << c;
  }
}

void expect_equal_to_plain_run(const Case& c) {
  Setting s(c.optimizers);
  auto amp = start(c, s);
  for (int i = 0; i < kIterations; ++i) {
    iterate(c, s, amp, i);
  }
  const auto expected = plain_run(c);
  for (std::size_t m = 0; m < 3; ++m) {
    EXPECT_TRUE(at::equal(s.models[m]->value.to(at::kFloat), expected[m])) << c << ", model " << m;
  }
  for (const auto& item : amp.masters()) {
    EXPECT_TRUE(at::equal(item.master.to(at::kHalf), item.parameter)) << c;
  }
  // An overflow lowers every scale that went into the gradients it was found in.
  const bool hit = c.poisoned_iteration >= 0;
  const bool only_first = c.optimizers == 2 && c.poisoned_loss == 0;
  EXPECT_EQ(amp.loss_scale(0), hit ? 2 : 4) << c;
  if (c.scalers == 2) {
    EXPECT_EQ(amp.loss_scale(1), hit && !only_first ? 8 : 16) << c;
  }
}

TEST(SeveralLosses, equal_a_plain_run_without_the_poisoned_iteration) {
  for (const auto level : {OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3}) {
    for (const std::size_t optimizers : {1, 2}) {
      for (const int scalers : {1, 2}) {
        for (const int iteration : {-1, 0, 1}) {
          for (const int loss : {0, 1}) {
            for (const int zeroing : {0, 1, 2}) {
              expect_equal_to_plain_run({level, optimizers, scalers, iteration, loss, zeroing});
            }
          }
        }
      }
    }
  }
}

// Two optimizers stepped at different times: a scale moves only when no gradients have it any more.
TEST(SeveralLosses, a_scale_does_not_move_while_gradients_have_it) {
  auto a = std::make_shared<Weight>(0.f), b = std::make_shared<Weight>(0.f);
  SGD first({a->value}, 1.0), second({b->value}, 1.0);
  auto amp = initialize(Models{*a, *b}, Optimizers{first, second}, OptLevel::O0, {.loss_scale = "dynamic"});
  auto state = amp.state_dict();
  state["loss_scaler0.scale"].fill_(4);
  state["loss_scaler0.growth_interval"].fill_(1);
  amp.load_state_dict(state);
  const auto x = at::ones({2});
  amp.scale(amp.forward(a, x) + amp.forward(b, x)).backward();
  amp.step(first);
  EXPECT_EQ(amp.loss_scale(), 4);
  amp.scale(amp.forward(b, x)).backward();
  EXPECT_EQ(amp.loss_scale(), 4);
  amp.step(second);
  EXPECT_EQ(amp.loss_scale(), 8);
  EXPECT_EQ(a->value[0].item<float>(), -1);
  EXPECT_EQ(b->value[0].item<float>(), -2);
}

TEST(SeveralLosses, unscaling_in_the_middle_of_a_window_is_an_error) {
  auto a = std::make_shared<Weight>(0.f), b = std::make_shared<Weight>(0.f);
  SGD first({a->value}, 1.0), second({b->value}, 1.0);
  for (const auto level : {OptLevel::O0, OptLevel::O2}) {
    auto amp = initialize(Models{*a, *b}, Optimizers{first, second}, level, {.low_precision = at::kHalf});
    const auto x = at::ones({2});
    EXPECT_NE(testing::error_of([&] { amp.unscale_(first); }).find("no loss has been scaled"), std::string::npos);
    amp.scale(amp.forward(a, x)).backward();
    amp.unscale_(first);
    EXPECT_NE(testing::error_of([&] { amp.unscale_(first); }).find("has already been called"), std::string::npos);
    EXPECT_NE(testing::error_of([&] { amp.scale(amp.forward(a, x)); }).find("have been unscaled, and neither stepped"),
              std::string::npos);
    amp.scale(amp.forward(b, x), 0, {second}).backward();
    amp.step(first);
    amp.step(second);
    EXPECT_NE(testing::error_of([&] { amp.step(second); }).find("no loss has been scaled"), std::string::npos);
    EXPECT_NE(testing::error_of([&] { amp.scale(x.sum(), 1); }).find("no such loss; got loss_id 1"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::amp
