// SPDX-License-Identifier: Apache-2.0
// What an optimizer keeps, as entries.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <unordered_map>

#include "replica/entry.h"

namespace lockstep::replica {

/// Who a tensor is: of parameters and masters.
struct Identity {
  std::string name;
  bool listed = false;  // there is an entry for it already
};
using Identities = std::unordered_map<const c10::TensorImpl*, Identity>;

/// Appends learning rates, step counts, moments, masters, and the parameters that nobody has listed. `prefix` precedes
/// the names that no model gives. Throws InputError for a state whose class is not known.
void append_optimizer(Entries& entries, Identities& identities, torch::optim::Optimizer& optimizer,
                      const std::string& prefix);

/// A parameter's state of one of the classes known here.
struct StateView {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::optional<std::int64_t> steps;
  std::function<void(std::int64_t)> set_steps;
};

/// Nothing for a class that is not known.
std::optional<StateView> view_of(torch::optim::OptimizerParamState& state);

}  // namespace lockstep::replica
