// SPDX-License-Identifier: Apache-2.0
// What each optimizer's state class holds.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/optim/lamb.h"
#include "replica/optimizer_entries.h"

namespace lockstep::replica {
namespace {

namespace o = torch::optim;

template <class State>
StateView counted(State& state) {
  return {{}, state.step(), [&state](std::int64_t steps) { state.step(steps); }};
}

template <class State>
StateView moments(State& state) {
  auto view = counted(state);
  view.tensors = {{"exp_avg", state.exp_avg()}, {"exp_avg_sq", state.exp_avg_sq()}};
  if constexpr (requires { state.max_exp_avg_sq(); }) {
    view.tensors.emplace_back("max_exp_avg_sq", state.max_exp_avg_sq());
  }
  return view;
}

StateView view(o::AdamParamState& state) {
  return moments(state);
}
StateView view(o::AdamWParamState& state) {
  return moments(state);
}
StateView view(optim::LambParamState& state) {
  return moments(state);
}

StateView view(o::SGDParamState& state) {
  return {{{"momentum_buffer", state.momentum_buffer()}}, {}, {}};
}

StateView view(o::AdagradParamState& state) {
  auto view = counted(state);
  view.tensors = {{"sum", state.sum()}};
  return view;
}

StateView view(o::RMSpropParamState& state) {
  auto view = counted(state);
  view.tensors = {
      {"square_avg", state.square_avg()}, {"momentum_buffer", state.momentum_buffer()}, {"grad_avg", state.grad_avg()}};
  return view;
}

void append(StateView& view, const std::string& name, const std::deque<at::Tensor>& history) {
  for (std::size_t i = 0; i < history.size(); ++i) {
    view.tensors.emplace_back(name + "." + std::to_string(i), history[i]);
  }
}

StateView view(o::LBFGSParamState& state) {
  StateView view{{{"d", state.d()}, {"H_diag", state.H_diag()}, {"prev_flat_grad", state.prev_flat_grad()}},
                 state.n_iter(),
                 [&state](std::int64_t steps) { state.n_iter(steps); }};
  append(view, "old_dirs", state.old_dirs());
  append(view, "old_stps", state.old_stps());
  append(view, "ro", state.ro());
  return view;
}

/// The view by the first class of the list that `state` is of.
template <class First, class... Rest>
std::optional<StateView> first_view(o::OptimizerParamState& state) {
  if (auto* known = dynamic_cast<First*>(&state)) {
    return view(*known);
  }
  if constexpr (sizeof...(Rest) > 0) {
    return first_view<Rest...>(state);
  }
  return std::nullopt;
}

}  // namespace

std::optional<StateView> view_of(o::OptimizerParamState& state) {
  auto found = first_view<o::AdamWParamState, o::AdamParamState, o::SGDParamState, optim::LambParamState,
                          o::RMSpropParamState, o::AdagradParamState, o::LBFGSParamState>(state);
  if (found) {
    std::erase_if(found->tensors, [](const auto& named) { return !named.second.defined(); });
  }
  return found;
}

}  // namespace lockstep::replica
