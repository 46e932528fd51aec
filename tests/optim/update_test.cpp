// SPDX-License-Identifier: Apache-2.0
// Fused updates beside torch::optim's own loops, and beside Python's.
#include <fstream>
#include <sstream>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;

constexpr int kUpdateSteps = 20;

template <class Optimizer>
void train(Optimizer& optimizer, const Tensors& parameters) {
  for (int step = 0; step < kUpdateSteps; ++step) {
    set_gradients(parameters, make_gradients(parameters, step));
    optimizer.step();
  }
}

template <class Ours, class Theirs, class Options>
std::pair<Tensors, Tensors> both(at::ScalarType dtype, const Options& options) {
  auto ours = make_parameters(dtype, 1);
  auto theirs = clone(ours);
  Ours fused(ours, options);
  Theirs stock(theirs, options);
  train(fused, ours);
  train(stock, theirs);
  return {detached(ours), detached(theirs)};
}

std::vector<torch::optim::SGDOptions> sgd_options() {
  using O = torch::optim::SGDOptions;
  return {O(0.1), O(0.1).weight_decay(0.01), O(0.1).momentum(0.9),
          O(0.1).momentum(0.9).dampening(0.3).weight_decay(0.01),
          O(0.1).momentum(0.9).nesterov(true).weight_decay(0.01)};
}

TEST(Update, sgd_equals_torch_bit_for_bit) {
  int i = 0;
  for (const auto& options : sgd_options()) {
    const auto [ours, theirs] = both<SGD, torch::optim::SGD>(at::kFloat, options);
    expect_same_bits(ours, theirs, "options " + std::to_string(i++));
  }
}

TEST(Update, sgd_in_fp64_equals_torch_bit_for_bit) {
  int i = 0;
  for (const auto& options : sgd_options()) {
    const auto [ours, theirs] = both<SGD, torch::optim::SGD>(at::kDouble, options);
    expect_same_bits(ours, theirs, "options " + std::to_string(i++));
  }
}

// Both round a handful of times a step, each by half a unit in the last place, and what the second moment has rounded
// stays: after T steps the weights, of size one and moved by 0.01 a step, may lie T units apart.
constexpr double kAdamBound = kUpdateSteps * 1.2e-7;

template <class Options>
std::vector<Options> adam_options() {
  return {Options(0.01), Options(0.01).weight_decay(0.1), Options(0.01).amsgrad(true).betas({0.8, 0.9}),
          Options(0.01).eps(1e-3).amsgrad(true).weight_decay(0.1)};
}

TEST(Update, adam_equals_torch_within_rounding) {
  for (const auto& options : adam_options<torch::optim::AdamOptions>()) {
    const auto [ours, theirs] = both<Adam, torch::optim::Adam>(at::kFloat, options);
    expect_close(ours, theirs, kAdamBound, "Adam");
  }
}

TEST(Update, adamw_equals_torch_within_rounding) {
  for (const auto& options : adam_options<torch::optim::AdamWOptions>()) {
    const auto [ours, theirs] = both<AdamW, torch::optim::AdamW>(at::kFloat, options);
    expect_close(ours, theirs, kAdamBound, "AdamW");
    const auto [wide_ours, wide_theirs] = both<AdamW, torch::optim::AdamW>(at::kDouble, options);
    expect_close(wide_ours, wide_theirs, 1e-14, "AdamW fp64");
  }
}

at::Tensor formula(double (*value)(int, int), int step) {
  at::Tensor out = at::empty({7}, at::kFloat);
  for (int i = 0; i < 7; ++i) {
    out[i] = value(i, step);
  }
  return out;
}

at::Tensor golden_run(const std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>& make) {
  auto w = formula([](int i, int) { return std::sin(i + 1.0); }, 0).requires_grad_();
  const auto optimizer = make({w});
  for (int t = 0; t < kUpdateSteps; ++t) {
    w.mutable_grad() = formula([](int i, int s) { return std::cos((i + 1.0) * (s + 1)) * std::pow(10.0, i - 3); }, t);
    optimizer->step();
  }
  return w.detach();
}

std::map<std::string, at::Tensor> read_golden() {
  std::ifstream file(LOCKSTEP_GOLDEN "/optimizers.txt");
  std::map<std::string, at::Tensor> runs;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<double> values;
    for (double value = 0; words >> value;) {
      values.push_back(value);
    }
    runs[name] = at::tensor(values, at::kDouble);
  }
  return runs;
}

TEST(Update, all_equal_python) {
  using A = torch::optim::AdamOptions;
  using W = torch::optim::AdamWOptions;
  using S = torch::optim::SGDOptions;
  const auto make = [](auto* kind, auto options, FusedOptions fused = {}) {
    return [=](Tensors parameters) -> std::unique_ptr<torch::optim::Optimizer> {
      return std::make_unique<std::remove_pointer_t<decltype(kind)>>(std::move(parameters), options, fused);
    };
  };
  const FusedOptions up{.maximize = true};
  Adam* adam = nullptr;
  AdamW* adamw = nullptr;
  SGD* sgd = nullptr;
  std::map<std::string, at::Tensor> ours{
      {"adam", golden_run(make(adam, A(0.1)))},
      {"adam_decay_amsgrad", golden_run(make(adam, A(0.1).weight_decay(0.1).amsgrad(true)))},
      {"adam_maximize", golden_run(make(adam, A(0.1).betas({0.8, 0.9}).eps(1e-3), up))},
      {"adamw", golden_run(make(adamw, W(0.1)))},
      {"adamw_decay_amsgrad", golden_run(make(adamw, W(0.1).weight_decay(0.2).amsgrad(true).eps(1e-6)))},
      {"sgd", golden_run(make(sgd, S(0.1)))},
      {"sgd_momentum", golden_run(make(sgd, S(0.1).momentum(0.9).dampening(0.5).weight_decay(0.1)))},
      {"sgd_nesterov", golden_run(make(sgd, S(0.1).momentum(0.9).nesterov(true), up))}};
  const auto golden = read_golden();
  ASSERT_EQ(golden.size(), ours.size());
  for (const auto& [name, values] : golden) {
    ASSERT_TRUE(ours.count(name)) << name;
    expect_close({ours[name]}, {values}, kAdamBound, name);
  }
}

TEST(Update, results_do_not_depend_on_how_tensors_are_cut) {
  // One tensor, the same as 100 views of an arena, and the same as 100 strays.
  const auto start = at::randn({100 * 37}, at::make_generator<at::CPUGeneratorImpl>(3));
  const auto run = [&](Tensors parameters) {
    AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 5; ++step) {
      const auto gradient = at::randn(start.sizes(), at::make_generator<at::CPUGeneratorImpl>(50 + step));
      std::int64_t offset = 0;
      for (auto& p : parameters) {
        p.mutable_grad() = gradient.narrow(0, offset, p.numel());
        offset += p.numel();
      }
      optimizer.step();
    }
    return at::cat(detached(parameters));
  };
  const auto whole = run({start.clone().requires_grad_()});
  const auto arena = start.clone();
  Tensors views, strays;
  for (int i = 0; i < 100; ++i) {
    views.push_back(arena.narrow(0, i * 37, 37).detach().requires_grad_());
    strays.push_back(start.narrow(0, i * 37, 37).clone().requires_grad_());
  }
  EXPECT_TRUE(same_bits(whole, run(views)));
  EXPECT_TRUE(same_bits(whole, run(strays)));
}

}  // namespace
}  // namespace lockstep::optim
