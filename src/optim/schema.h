// SPDX-License-Identifier: Apache-2.0
// How each torch::optim class keeps its options and its state, behind one interface.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <memory>

#include "optim/pass.h"

namespace torch::optim {
struct AdamOptions;
struct AdamWOptions;
struct SGDOptions;
}  // namespace torch::optim

namespace lockstep::optim {

struct LambOptions;

/// What a group's options come to.
struct Recipe {
  Update update = Update::sgd;
  Hyper hyper;
};

constexpr int state_count(Update update) {
  constexpr std::array<int, 6> counts{2, 3, 0, 1, 1, 2};  // in the order of Update
  return counts[static_cast<std::size_t>(update)];
}

class Schema {
 public:
  virtual ~Schema() = default;

  /// Throws InputError if the options are of another optimizer's class or out of range.
  virtual Recipe recipe(const torch::optim::OptimizerOptions& options) const = 0;

  /// Overwrites `to` in place, so that references to it stay good. Both of this schema's class.
  virtual void assign(torch::optim::OptimizerOptions& to, const torch::optim::OptimizerOptions& from) const = 0;

  virtual std::unique_ptr<torch::optim::OptimizerParamState> make_state() const = 0;

  /// Where the state keeps the tensors that an update reads, in its order; null beyond the last.
  virtual std::array<at::Tensor*, kMaxStates> tensors(torch::optim::OptimizerParamState& state) const = 0;

  /// Steps taken by this state. SGD does not count: 1 once it has a buffer.
  virtual std::int64_t steps(const torch::optim::OptimizerParamState& state) const = 0;
  virtual void set_steps(torch::optim::OptimizerParamState& state, std::int64_t steps) const = 0;

  virtual const char* name() const = 0;

  /// The name of an option that files of this class have and those of other families have not.
  virtual const char* telling_option() const = 0;
};

/// The schema of the torch::optim class with these options.
template <class Options>
std::unique_ptr<Schema> make_schema();
template <>
std::unique_ptr<Schema> make_schema<torch::optim::AdamOptions>();
template <>
std::unique_ptr<Schema> make_schema<torch::optim::AdamWOptions>();
template <>
std::unique_ptr<Schema> make_schema<torch::optim::SGDOptions>();
template <>
std::unique_ptr<Schema> make_schema<LambOptions>();

}  // namespace lockstep::optim
