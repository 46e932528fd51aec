// SPDX-License-Identifier: Apache-2.0
#include "optim/schema.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "core/check.h"
#include "lockstep/optim/lamb.h"

namespace lockstep::optim {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

constexpr auto kOptions = "optim.options";

void in_range(bool ok, const char* name, double value, const char* expected) {
  core::check(ok, kOptions, [&] {
    return core::Problem{core::str(name, " out of range"), core::str(value), expected};
  });
}

void at_least_zero(const char* name, double value) {
  in_range(value >= 0 && std::isfinite(value), name, value, ">= 0");
}

template <class Options>
const Options& cast(const OptimizerOptions& options) {
  const auto* mine = dynamic_cast<const Options*>(&options);
  core::check(mine != nullptr, kOptions, [] {
    return core::Problem{.what = "a parameter group has options of another optimizer's class",
                         .advice = "give each group the options class of its optimizer"};
  });
  return *mine;
}

/// What Adam, AdamW and LAMB have in common.
template <class Options, class State>
class MomentsSchema : public Schema {
 public:
  void assign(OptimizerOptions& to, const OptimizerOptions& from) const override {
    static_cast<Options&>(to) = static_cast<const Options&>(from);
  }

  std::unique_ptr<OptimizerParamState> make_state() const override { return std::make_unique<State>(); }

  std::int64_t steps(const OptimizerParamState& state) const override {
    return static_cast<const State&>(state).step();
  }

  void set_steps(OptimizerParamState& state, std::int64_t steps) const override {
    static_cast<State&>(state).step(steps);
  }

 protected:
  static Hyper checked(const Options& options) {
    const auto [beta1, beta2] = options.betas();
    at_least_zero("lr", options.lr());
    at_least_zero("eps", options.eps());
    at_least_zero("weight_decay", options.weight_decay());
    in_range(beta1 >= 0 && beta1 < 1, "beta1", beta1, "[0, 1)");
    in_range(beta2 >= 0 && beta2 < 1, "beta2", beta2, "[0, 1)");
    return {.lr = options.lr(), .beta1 = beta1, .beta2 = beta2, .eps = options.eps()};
  }
};

template <class Options, class State, bool kDecoupled>
class AdamSchema final : public MomentsSchema<Options, State> {
 public:
  Recipe recipe(const OptimizerOptions& any) const override {
    const auto& options = cast<Options>(any);
    auto hyper = this->checked(options);
    (kDecoupled ? hyper.decay_weight : hyper.decay_gradient) = options.weight_decay();
    return {options.amsgrad() ? Update::amsgrad : Update::adam, hyper};
  }

  std::array<at::Tensor*, kMaxStates> tensors(OptimizerParamState& any) const override {
    auto& state = static_cast<State&>(any);
    return {&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()};
  }

  const char* name() const override { return kDecoupled ? "AdamW" : "Adam"; }
  const char* telling_option() const override { return "amsgrad"; }
};

class LambSchema final : public MomentsSchema<LambOptions, LambParamState> {
 public:
  Recipe recipe(const OptimizerOptions& any) const override {
    const auto& options = cast<LambOptions>(any);
    auto hyper = checked(options);
    hyper.decay_weight = options.weight_decay();
    hyper.adapt = options.always_adapt() || options.weight_decay() != 0;
    return {Update::lamb, hyper};
  }

  std::array<at::Tensor*, kMaxStates> tensors(OptimizerParamState& any) const override {
    auto& state = static_cast<LambParamState&>(any);
    return {&state.exp_avg(), &state.exp_avg_sq()};
  }

  const char* name() const override { return "Lamb"; }
  const char* telling_option() const override { return "always_adapt"; }
};

class SgdSchema final : public Schema {
 public:
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;

  Recipe recipe(const OptimizerOptions& any) const override {
    const auto& options = cast<Options>(any);
    at_least_zero("lr", options.lr());
    at_least_zero("momentum", options.momentum());
    at_least_zero("weight_decay", options.weight_decay());
    const bool plain = options.momentum() == 0;
    core::check(!options.nesterov() || (!plain && options.dampening() == 0), kOptions, [&] {
      return core::Problem{"Nesterov needs a momentum and no dampening",
                           core::str("momentum ", options.momentum(), ", dampening ", options.dampening())};
    });
    const auto update = plain ? Update::sgd : options.nesterov() ? Update::nesterov : Update::momentum;
    return {update,
            {.lr = options.lr(),
             .decay_gradient = options.weight_decay(),
             .momentum = options.momentum(),
             .dampening = options.dampening()}};
  }

  void assign(OptimizerOptions& to, const OptimizerOptions& from) const override {
    static_cast<Options&>(to) = static_cast<const Options&>(from);
  }

  std::unique_ptr<OptimizerParamState> make_state() const override { return std::make_unique<State>(); }

  std::array<at::Tensor*, kMaxStates> tensors(OptimizerParamState& any) const override {
    return {&static_cast<State&>(any).momentum_buffer()};
  }

  std::int64_t steps(const OptimizerParamState& state) const override {
    return static_cast<const State&>(state).momentum_buffer().defined() ? 1 : 0;
  }

  void set_steps(OptimizerParamState&, std::int64_t) const override {}

  const char* name() const override { return "SGD"; }
  const char* telling_option() const override { return "momentum"; }
};

}  // namespace

template <>
std::unique_ptr<Schema> make_schema<torch::optim::AdamOptions>() {
  return std::make_unique<AdamSchema<torch::optim::AdamOptions, torch::optim::AdamParamState, false>>();
}

template <>
std::unique_ptr<Schema> make_schema<torch::optim::AdamWOptions>() {
  return std::make_unique<AdamSchema<torch::optim::AdamWOptions, torch::optim::AdamWParamState, true>>();
}

template <>
std::unique_ptr<Schema> make_schema<LambOptions>() {
  return std::make_unique<LambSchema>();
}

template <>
std::unique_ptr<Schema> make_schema<torch::optim::SGDOptions>() {
  return std::make_unique<SgdSchema>();
}

}  // namespace lockstep::optim
