// SPDX-License-Identifier: Apache-2.0
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>

#include "lockstep/error.h"
#include "replica/optimizer_entries.h"
#include "support/models.h"

namespace lockstep::replica {
namespace {

TEST(StateView, names_what_is_there_and_counts) {
  torch::optim::AdamParamState state;
  state.step(7);
  state.exp_avg(at::ones({2}));
  const auto view = view_of(state);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->steps, 7);
  ASSERT_EQ(view->tensors.size(), 1U);  // the others are not made yet
  EXPECT_EQ(view->tensors[0].first, "exp_avg");
  EXPECT_TRUE(view->tensors[0].second.is_same(state.exp_avg()));
  view->set_steps(9);
  EXPECT_EQ(state.step(), 9);
}

TEST(StateView, holds_a_history_of_any_length) {
  torch::optim::LBFGSParamState state;
  state.old_dirs({at::zeros({1}), at::ones({1})});
  EXPECT_EQ(view_of(state)->tensors.back().first, "old_dirs.1");
}

struct HomeMadeState : torch::optim::OptimizerCloneableParamState<HomeMadeState> {};

TEST(StateView, a_class_that_is_not_known_is_refused_not_overlooked) {
  HomeMadeState state;
  EXPECT_FALSE(view_of(state).has_value());
  torch::optim::SGD optimizer({at::zeros({2})}, torch::optim::SGDOptions(0.1));
  optimizer.state()[optimizer.parameters()[0].unsafeGetTensorImpl()] = std::make_unique<HomeMadeState>();
  Entries entries;
  Identities identities;
  EXPECT_THROW(append_optimizer(entries, identities, optimizer, ""), InputError);
}

TEST(OptimizerEntries, without_a_model_parameters_are_named_by_place) {
  torch::optim::SGD optimizer({at::zeros({2}), at::zeros({3})}, torch::optim::SGDOptions(0.1));
  Entries entries;
  Identities identities;
  append_optimizer(entries, identities, optimizer, "optimizer 1 ");
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[0].name, "optimizer 1 group 0");
  EXPECT_EQ(entries[2].name, "optimizer 1 group 0 parameter 1");
  EXPECT_EQ(entries[2].kind, StateKind::Parameter);
  entries[0].put(at::scalar_tensor(0.5, at::kDouble));
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
}

}  // namespace
}  // namespace lockstep::replica
