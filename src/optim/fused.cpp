// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/fused.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "core/check.h"
#include "lockstep/optim/lamb.h"
#include "optim/checkpoint.h"
#include "optim/engine.h"

namespace lockstep::optim {

FusedOptimizer::FusedOptimizer(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
FusedOptimizer::~FusedOptimizer() = default;

void FusedOptimizer::step_fused(const StepInputs& inputs) {
  engine_->step(inputs);
}

void FusedOptimizer::step_scaled(const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  engine_->step({grad_scale, found_inf, {}});
}

void FusedOptimizer::set_master_pairs(std::vector<MasterPair> pairs) {
  engine_->set_pairs(std::move(pairs));
}

at::Tensor FusedOptimizer::master(const at::Tensor& parameter) const {
  return engine_->master(parameter);
}

void FusedOptimizer::set_master(const at::Tensor& parameter, const at::Tensor& value) {
  engine_->set_master(parameter, value);
}

void FusedOptimizer::sync_steps() {
  engine_->sync_steps();
}

bool FusedOptimizer::capturable() const {
  return engine_->options().capturable;
}

std::vector<LiveTensor> FusedOptimizer::live_tensors() const {
  return engine_->live_tensors();
}

void FusedOptimizer::upload_learning_rates() {
  engine_->upload_learning_rates();
}

template <class Base, class Options>
Fused<Base, Options>::Fused(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults,
                            FusedOptions fused)
    : Base(groups, std::move(defaults)),
      FusedOptimizer(std::make_unique<Engine>(*this, make_schema<Options>(), fused)) {}

template <class Base, class Options>
Fused<Base, Options>::Fused(std::vector<at::Tensor> parameters, Options defaults, FusedOptions fused)
    : Base(std::move(parameters), std::move(defaults)),
      FusedOptimizer(std::make_unique<Engine>(*this, make_schema<Options>(), fused)) {}

template <class Base, class Options>
at::Tensor Fused<Base, Options>::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  engine().step({});
  return loss;
}

template <class Base, class Options>
void Fused<Base, Options>::save(torch::serialize::OutputArchive& archive) const {
  engine().sync_steps();
  const Engine::Unborn hidden(engine());
  Base::save(archive);
  save_extras(archive, engine());
}

template <class Base, class Options>
void Fused<Base, Options>::load(torch::serialize::InputArchive& archive) {
  check_class(archive, engine().schema());
  Base loaded(this->param_groups(), static_cast<Options&>(this->defaults()));
  try {
    loaded.load(archive);
  } catch (const c10::Error& error) {
    core::fail("optim.load", {"the checkpoint does not fit this optimizer", error.what_without_backtrace()});
  }
  check_loaded(loaded, engine().schema());
  engine().replace(loaded, load_masters(archive, engine().masters().size()));
}

template <class Base, class Options>
void Fused<Base, Options>::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  if (group.has_options()) {
    engine().schema().recipe(group.options());
  }
  Base::add_param_group(group);
}

template class Fused<torch::optim::Adam, torch::optim::AdamOptions>;
template class Fused<torch::optim::AdamW, torch::optim::AdamWOptions>;
template class Fused<torch::optim::SGD, torch::optim::SGDOptions>;
template class Fused<PlainLamb, LambOptions>;

}  // namespace lockstep::optim
