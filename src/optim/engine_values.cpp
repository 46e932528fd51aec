// SPDX-License-Identifier: Apache-2.0
// What the engine holds beside torch's state, for those who ask: masters, pairs, step counts, learning rates.
#include <ATen/ops/full.h>

#include <unordered_set>

#include "core/check.h"
#include "optim/engine.h"
#include "optim/plan.h"

namespace lockstep::optim {
namespace {

void check_pair(const MasterPair& pair) {
  const auto& [master, parameter] = pair;
  const auto low = parameter.defined() ? kind_of(parameter.scalar_type()) : Kind::none;
  const bool kinds = master.defined() && master.scalar_type() == at::kFloat && (low == Kind::f16 || low == Kind::bf16);
  core::check(kinds && master.sizes() == parameter.sizes() && master.device() == parameter.device(),
              "optim.set_master_pairs", [&] {
                return core::Problem{"a master does not fit its parameter",
                                     core::str(master.toString(), " and ", parameter.toString()),
                                     "a fp32 master and a fp16 or bf16 parameter of one shape on one device"};
              });
}

}  // namespace

void Engine::set_pairs(std::vector<MasterPair> pairs) {
  for (const auto& pair : pairs) {
    check_pair(pair);
  }
  pairs_.clear();
  for (auto& pair : pairs) {
    pairs_[pair.master.unsafeGetTensorImpl()] = std::move(pair);
  }
}

at::Tensor Engine::master(const at::Tensor& parameter) const {
  for (const auto& [key, pair] : pairs_) {
    if (pair.parameter.is_same(parameter)) {
      return pair.master;
    }
  }
  const auto slot = slots_.find(parameter.unsafeGetTensorImpl());
  return slot != slots_.end() ? slot->second.master : at::Tensor();
}

void Engine::set_master(const at::Tensor& parameter, const at::Tensor& value) {
  core::check(options_.master_weights, "optim.set_master", [] {
    return core::Problem{.what = "this optimizer keeps no masters", .advice = "set FusedOptions::master_weights"};
  });
  core::check(value.sizes() == parameter.sizes(), "optim.set_master", [&] {
    return core::Problem{"the master has another shape than its parameter", core::str(value.sizes()),
                         core::str(parameter.sizes())};
  });
  const at::NoGradGuard no_grad;
  auto& master = slot_of(parameter).master;
  if (!master.defined()) {
    make_adjacent({{&parameter, &master, {}, at::kFloat, kMaxStates}});
  }
  master.copy_(value);
}

std::vector<at::Tensor> Engine::masters() const {
  std::vector<at::Tensor> all;
  for (const auto& group : owner_.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto slot = slots_.find(parameter.unsafeGetTensorImpl());
      all.push_back(slot != slots_.end() ? slot->second.master : at::Tensor());
    }
  }
  return all;
}

std::vector<LiveTensor> Engine::live_tensors() const {
  using What = LiveTensor::What;
  std::vector<LiveTensor> live;
  std::unordered_set<const ClockCell*> seen;
  for (std::size_t g = 0; g < owner_.param_groups().size(); ++g) {
    if (g < learning_rates_.size() && learning_rates_[g].defined()) {
      live.push_back({What::LearningRate, g, {}, learning_rates_[g]});
    }
    for (const auto& parameter : owner_.param_groups()[g].params()) {
      const auto slot = slots_.find(parameter.unsafeGetTensorImpl());
      if (slot != slots_.end() && slot->second.master.defined()) {
        live.push_back({What::Master, g, parameter, slot->second.master});
      }
      const auto* clock = slot != slots_.end() ? slot->second.clock.get() : nullptr;
      if (clock != nullptr && seen.insert(clock).second) {
        live.push_back({What::StepCount, g, parameter, clock->memory.narrow(0, 0, 1)});
      }
    }
  }
  return live;
}

void Engine::sync_steps() {
  std::unordered_map<const ClockCell*, std::int64_t> read;
  for (auto& [key, slot] : slots_) {
    const auto state = owner_.state().find(key);
    if (!slot.clock || state == owner_.state().end() || schema_->steps(*state->second) != slot.mirrored) {
      continue;
    }
    const auto [steps, unread] = read.try_emplace(slot.clock.get(), 0);
    if (unread) {
      steps->second = slot.clock->read_steps();
    }
    schema_->set_steps(*state->second, steps->second);
    slot.mirrored = schema_->steps(*state->second);
  }
}

Engine::Unborn::Unborn(Engine& engine) : engine_(engine) {
  auto& states = engine_.owner_.state();
  for (const auto& [key, slot] : engine_.slots_) {
    const auto state = states.find(key);
    if (state != states.end() && slot.clock && slot.clock->read_steps() == 0) {
      taken_.emplace_back(key, std::move(state->second));
      states.erase(state);
    }
  }
}

Engine::Unborn::~Unborn() {
  for (auto& [key, state] : taken_) {
    engine_.owner_.state()[key] = std::move(state);
  }
}

at::Tensor& Engine::learning_rate(std::size_t group, c10::Device device) {
  if (learning_rates_.size() <= group) {
    learning_rates_.resize(group + 1);
  }
  auto& rate = learning_rates_[group];
  if (!rate.defined()) {
    rate = at::full({1}, owner_.param_groups()[group].options().get_lr(), at::TensorOptions(device).dtype(at::kDouble));
  }
  core::check(rate.device() == device, "optim.step", [&] {
    return core::Problem{"a capturable group spans two devices",
                         core::str(rate.device(), " and ", device),
                         {},
                         "give each device's parameters a group of their own"};
  });
  return rate;
}

void Engine::upload_learning_rates() {
  for (std::size_t g = 0; g < learning_rates_.size(); ++g) {
    if (learning_rates_[g].defined()) {
      learning_rates_[g].fill_(owner_.param_groups()[g].options().get_lr());
    }
  }
}

void Engine::replace(torch::optim::Optimizer& loaded, const std::vector<at::Tensor>& masters) {
  slots_.clear();
  owner_.state() = std::move(loaded.state());
  std::size_t place = 0;
  for (std::size_t g = 0; g < owner_.param_groups().size(); ++g) {
    auto& group = owner_.param_groups()[g];
    schema_->assign(group.options(), loaded.param_groups()[g].options());
    for (const auto& parameter : group.params()) {
      auto& slot = slot_of(parameter);
      if (options_.master_weights && place < masters.size() && masters[place].defined()) {
        set_master(parameter, masters[place]);
      }
      ++place;
      slot.mirrored = -1;
    }
  }
  upload_learning_rates();
}

}  // namespace lockstep::optim
