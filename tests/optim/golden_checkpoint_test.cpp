// SPDX-License-Identifier: Apache-2.0
// Optimizer state beside that of Python, as written by tests/golden/optimizer_checkpoints.py: after the same steps it
// holds the same numbers under the same names, and training goes on from Python's as Python does.
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;

constexpr int kHalfway = 5;
constexpr double kGoldenBound = 2 * kHalfway * 1.2e-7;

using Arrays = std::map<std::string, at::Tensor>;

std::map<std::string, Arrays> python_checkpoints() {
  std::ifstream file(LOCKSTEP_GOLDEN "/optimizer_checkpoints.txt");
  std::map<std::string, Arrays> runs;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string run, key;
    words >> run >> key;
    std::vector<double> values;
    for (double value = 0; words >> value;) {
      values.push_back(value);
    }
    runs[run][key] = at::tensor(values, at::kDouble).to(at::kFloat);
  }
  return runs;
}

at::Tensor element_by_element(const std::function<double(int)>& value) {
  at::Tensor out = at::empty({7});
  for (int i = 0; i < 7; ++i) {
    out[i] = value(i);
  }
  return out;
}

void train_as_python(torch::optim::Optimizer& optimizer, const at::Tensor& w, int first) {
  for (int t = first; t < first + kHalfway; ++t) {
    w.mutable_grad() = element_by_element([&](int i) { return std::cos((i + 1.0) * (t + 1)) * std::pow(10.0, i - 3); });
    optimizer.step();
  }
}

/// State by the keys of Python's state_dict.
template <class AdamState>
Arrays arrays_of(const AdamState& state) requires requires {
  state.exp_avg();
}
{
  Arrays arrays{{"step", at::full({1}, static_cast<double>(state.step()))},
                {"exp_avg", state.exp_avg()},
                {"exp_avg_sq", state.exp_avg_sq()}};
  if (state.max_exp_avg_sq().defined()) {
    arrays["max_exp_avg_sq"] = state.max_exp_avg_sq();
  }
  return arrays;
}
Arrays arrays_of(const torch::optim::SGDParamState& state) {
  return {{"momentum_buffer", state.momentum_buffer()}};
}

template <class AdamState>
void fill(AdamState& state, const Arrays& from) requires requires {
  state.exp_avg();
}
{
  state.step(from.at("step").template item<std::int64_t>());
  state.exp_avg(from.at("exp_avg").clone());
  state.exp_avg_sq(from.at("exp_avg_sq").clone());
  if (from.count("max_exp_avg_sq") != 0) {
    state.max_exp_avg_sq(from.at("max_exp_avg_sq").clone());
  }
}
void fill(torch::optim::SGDParamState& state, const Arrays& from) {
  state.momentum_buffer(from.at("momentum_buffer").clone());
}

/// |a - b| within the bound of the larger: gradients span six powers of ten.
void expect_near_relative(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  EXPECT_TRUE(at::allclose(a, b, /*rtol=*/kGoldenBound, /*atol=*/kGoldenBound * 1e-3)) << what << "\n"
                                                                                       << a << "\n"
                                                                                       << b;
}

template <class Optimizer, class State, class Options>
void expect_pythons(const Arrays& python, const Options& options, const std::string& name) {
  auto w = element_by_element([](int i) { return std::sin(i + 1.0); }).requires_grad_();
  Optimizer ours(Tensors{w}, options);
  train_as_python(ours, w, 0);
  expect_close({w}, {python.at("parameters")}, kGoldenBound, name);
  const auto arrays = arrays_of(static_cast<const State&>(*ours.state().at(w.unsafeGetTensorImpl())));
  for (const auto& [key, values] : arrays) {
    expect_near_relative(values, python.at(key), name + " " + key);
  }
  EXPECT_EQ(arrays.size() + 2, python.size()) << name << ": Python has other keys";

  auto resumed = python.at("parameters").clone().requires_grad_();
  Optimizer from_python(Tensors{resumed}, options);
  auto state = std::make_unique<State>();
  fill(*state, python);
  from_python.state()[resumed.unsafeGetTensorImpl()] = std::move(state);
  train_as_python(from_python, resumed, kHalfway);
  expect_close({resumed}, {python.at("end")}, kGoldenBound, name + " resumed");
}

TEST(GoldenCheckpoint, state_equals_pythons_and_python_state_resumes) {
  const auto python = python_checkpoints();
  ASSERT_EQ(python.size(), 4U);
  using torch::optim::AdamOptions;
  using torch::optim::AdamParamState;
  using torch::optim::AdamWOptions;
  using torch::optim::AdamWParamState;
  using torch::optim::SGDOptions;
  using torch::optim::SGDParamState;
  expect_pythons<Adam, AdamParamState>(python.at("adam"), AdamOptions(0.1).weight_decay(0.1), "adam");
  expect_pythons<Adam, AdamParamState>(python.at("adam_amsgrad"), AdamOptions(0.1).amsgrad(true), "adam_amsgrad");
  expect_pythons<AdamW, AdamWParamState>(python.at("adamw"), AdamWOptions(0.1).weight_decay(0.2), "adamw");
  expect_pythons<SGD, SGDParamState>(python.at("sgd"), SGDOptions(0.1).momentum(0.9).dampening(0.5), "sgd");
}

}  // namespace
}  // namespace lockstep::optim
