// SPDX-License-Identifier: Apache-2.0
// Checkpoints that go both ways between ours and torch::optim's classes, and files that do not fit.
#include <torch/optim/serialize.h>
#include <torch/serialize.h>

#include <sstream>

#include "lockstep/error.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "optim/saving.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::SGDOptions;

/// Trains 5 steps as `From`, goes on for 5 as `To` from the checkpoint, and gives what 10 steps as `Whole` come to.
template <class From, class To, class Whole, class Options>
std::pair<Tensors, Tensors> resumed_and_whole(const Options& options) {
  const auto start = make_parameters(at::kFloat, 3);
  auto first = clone(start);
  From from(first, options);
  train(from, 0, 5);
  auto second = clone(first);
  To to(second, Options(0.7));  // the file's rate wins
  load_from(file_of(from), to);
  train(to, 5, 10);
  auto whole = clone(start);
  Whole never_stopped(whole, options);
  train(never_stopped, 0, 10);
  return {detached(second), detached(whole)};
}

template <class Ours, class Stock, class Options>
void goes_both_ways(const Options& options, double bound) {
  const auto [same, whole] = resumed_and_whole<Ours, Ours, Ours>(options);
  expect_same_bits(same, whole, "ours to ours");
  const auto [to_stock, stock] = resumed_and_whole<Ours, Stock, Stock>(options);
  expect_close(to_stock, stock, bound, "ours to stock");
  const auto [from_stock, ours] = resumed_and_whole<Stock, Ours, Ours>(options);
  expect_close(from_stock, ours, bound, "stock to ours");
}

TEST(OptimizerCheckpoint, goes_both_ways) {
  constexpr double kBound = 10 * 1.2e-7;
  goes_both_ways<Adam, torch::optim::Adam>(AdamOptions(0.01).weight_decay(0.1), kBound);
  goes_both_ways<Adam, torch::optim::Adam>(AdamOptions(0.01).amsgrad(true), kBound);
  goes_both_ways<AdamW, torch::optim::AdamW>(AdamWOptions(0.01).betas({0.8, 0.9}), kBound);
  goes_both_ways<SGD, torch::optim::SGD>(SGDOptions(0.1), 0);
  goes_both_ways<SGD, torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.2), 0);
}

TEST(OptimizerCheckpoint, masters_and_their_fp32_moments_survive) {
  auto parameters = make_parameters(at::kBFloat16, 3);
  AdamW optimizer(parameters, AdamWOptions(1e-3), {.master_weights = true});
  train(optimizer, 0, 5);
  auto copies = clone(parameters);
  AdamW resumed(copies, AdamWOptions(1e-3), {.master_weights = true});
  load_from(file_of(optimizer), resumed);
  train(optimizer, 5, 10);
  train(resumed, 5, 10);
  expect_same_bits(detached(copies), detached(parameters), "parameters");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(same_bits(resumed.master(copies[i]), optimizer.master(parameters[i])));
  }
  torch::optim::AdamW stock(clone(parameters), AdamWOptions(1e-3));
  EXPECT_NO_THROW(load_from(file_of(optimizer), stock));
}

TEST(OptimizerCheckpoint, a_first_step_that_was_skipped_is_no_step_to_the_reader) {
  auto parameters = make_parameters(at::kFloat, 3);
  SGD skipping(parameters, SGDOptions(0.1).momentum(0.9).dampening(0.5));
  set_gradients(parameters, make_gradients(parameters, 0));
  skipping.step_scaled({}, one(1));
  auto copies = clone(parameters);
  torch::optim::SGD stock(copies, SGDOptions(0.1).momentum(0.9).dampening(0.5));
  load_from(file_of(skipping), stock);
  train(skipping, 1, 4);
  train(stock, 1, 4);
  expect_same_bits(detached(parameters), detached(copies), "parameters");
}

TEST(OptimizerCheckpoint, a_file_holds_each_state_once) {
  Tensors parameters;
  for (int i = 0; i < 50; ++i) {
    parameters.push_back(at::ones({1000}).requires_grad_());
  }
  AdamW ours(parameters);
  train(ours, 0, 1);
  torch::optim::AdamW stock(clone(parameters));
  train(stock, 0, 1);
  EXPECT_LT(file_of(ours).size(), file_of(stock).size() * 11 / 10);
}

TEST(OptimizerCheckpoint, a_file_without_state_takes_the_old_state_away) {
  auto parameters = make_parameters(at::kFloat, 3);
  const AdamW fresh(clone(parameters));
  AdamW used(parameters);
  train(used, 0, 3);
  load_from(file_of(fresh), used);
  EXPECT_TRUE(used.state().empty());
}

/// Expects that loading `file` throws InputError and leaves parameters, state and options as they are.
void refuses(Optimizer& optimizer, const std::string& file) {
  const auto before = file_of(optimizer).size();
  const auto states = optimizer.state().size();
  const auto rate = optimizer.param_groups()[0].options().get_lr();
  EXPECT_THROW(load_from(file, optimizer), InputError);
  EXPECT_EQ(optimizer.state().size(), states);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), rate);
  EXPECT_EQ(file_of(optimizer).size(), before);
}

TEST(OptimizerCheckpoint, a_file_that_does_not_fit_is_refused_whole) {
  auto parameters = make_parameters(at::kFloat, 3);
  AdamW optimizer(parameters, AdamWOptions(0.25));
  train(optimizer, 0, 2);
  SGD sgd(clone(parameters), SGDOptions(0.1).momentum(0.9));
  train(sgd, 0, 2);
  refuses(optimizer, file_of(sgd));
  refuses(sgd, file_of(optimizer));
  Adam adam(clone(parameters));
  train(adam, 0, 2);
  refuses(optimizer, file_of(adam));
  auto fewer = clone(parameters);
  fewer.pop_back();
  AdamW smaller(fewer);
  train(smaller, 0, 2);
  refuses(optimizer, file_of(smaller));
  auto others = clone(parameters);
  others[0] = at::ones({65}).requires_grad_();
  AdamW other_shape(others);
  train(other_shape, 0, 2);
  refuses(optimizer, file_of(other_shape));
  AdamW two_groups(clone(parameters));
  two_groups.add_param_group({{at::ones({1}).requires_grad_()}});
  refuses(optimizer, file_of(two_groups));
}

TEST(OptimizerCheckpoint, references_to_options_stay_good) {
  auto parameters = make_parameters(at::kFloat, 3);
  AdamW optimizer(parameters, AdamWOptions(0.25));
  auto& options = optimizer.param_groups()[0].options();
  const AdamW saved(clone(parameters), AdamWOptions(0.5));
  load_from(file_of(saved), optimizer);
  EXPECT_EQ(options.get_lr(), 0.5);
}

}  // namespace
}  // namespace lockstep::optim
