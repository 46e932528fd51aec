// SPDX-License-Identifier: Apache-2.0
#include "amp/binding.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_set>

#include "amp/low_precision.h"
#include "core/check.h"
#include "lockstep/optim/fused.h"

namespace lockstep::amp {
namespace {

template <class Fn>
void for_each_parameter(torch::optim::Optimizer& optimizer, const Fn& fn) {
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      fn(parameter);
    }
  }
}

std::size_t count_parameters(const torch::optim::Optimizer& optimizer) {
  std::size_t count = 0;
  for (const auto& group : optimizer.param_groups()) {
    count += group.params().size();
  }
  return count;
}

void zero(at::Tensor& gradient, bool set_to_none) {
  if (gradient.defined() && !set_to_none) {
    gradient.detach_().zero_();
  } else {
    gradient.reset();
  }
}

}  // namespace

Binding::Binding(torch::optim::Optimizer& optimizer, Masters& masters, std::string name, bool persistent)
    : optimizer_(optimizer),
      masters_(masters),
      name_(std::move(name)),
      persistent_(persistent),
      scaled_(dynamic_cast<optim::ScaledOptimizer*>(&optimizer)),
      fused_(dynamic_cast<optim::FusedOptimizer*>(&optimizer)),
      master_optimizer_(dynamic_cast<optim::MasterOptimizer*>(&optimizer)),
      sentinel_(at::empty({0}, at::kFloat)) {}

std::vector<at::Tensor> Binding::without_masters() const {
  std::vector<at::Tensor> found;
  if (persistent_ || scaled_ == nullptr) {
    for_each_parameter(optimizer_, [&](const at::Tensor& p) {
      if (low_precision(p)) {
        found.push_back(p);
      }
    });
  }
  return found;
}

void Binding::prepare() {
  if (zeroed_through_optimizer()) {
    drop_gradients();
    stage = Stage::Scaled;
  }
  if (count_parameters(optimizer_) != seen_) {
    take_in_groups();
    seen_ = count_parameters(optimizer_);
  }
}

void Binding::take_in_groups() {
  auto& groups = optimizer_.param_groups();
  std::unordered_set<const void*> met;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& parameters = groups[i].params();
    std::erase_if(parameters, [&](const at::Tensor& p) { return !met.insert(p.unsafeGetTensorImpl()).second; });
    adopt(parameters, i);
  }
  if (master_optimizer_ != nullptr) {
    std::vector<optim::MasterPair> pairs;
    for (const auto* m : list_) {
      pairs.push_back({m->master, m->parameter});
    }
    master_optimizer_->set_master_pairs(std::move(pairs));
  }
}

void Binding::adopt(std::vector<at::Tensor>& group, std::size_t group_index) {
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (!low_precision(group[i]) || (!persistent_ && scaled_ != nullptr)) {
      continue;
    }
    const auto parameter = group[i];
    auto* master = masters_.find(parameter);
    if (master == nullptr) {
      master = &masters_.add(core::str(name_, ".group", group_index, ".", i), parameter);
    }
    move_state(parameter, master->master);
    group[i] = master->master;
    group[i].mutable_grad() = sentinel_;
    sentinel_version_ = sentinel_._version();
    list_.push_back(master);
  }
}

void Binding::move_state(const at::Tensor& from, const at::Tensor& to) {
  auto& state = optimizer_.state();
  const auto found = state.find(from.unsafeGetTensorImpl());
  if (found != state.end()) {
    auto moved = std::move(found->second);
    state.erase(found);
    state[to.unsafeGetTensorImpl()] = std::move(moved);
  }
}

bool Binding::zeroed_through_optimizer() const {
  if (list_.empty()) {
    return false;
  }
  // The optimizer zeroes all of its parameters or none: one undefined gradient where we put one tells.
  if (stage == Stage::Scaled) {
    return !list_.front()->master.grad().defined() || sentinel_._version() != sentinel_version_;
  }
  return lent_ && std::none_of(list_.begin(), list_.end(), [](auto* m) { return m->master.grad().defined(); });
}

bool Binding::has_gradients() const {
  bool found = false;
  for_each_parameter(
      optimizer_, [&](const at::Tensor& p) { found = found || (p.grad().defined() && !p.grad().is_same(sentinel_)); });
  for (const auto* m : list_) {
    found = found || m->parameter.grad().defined();
  }
  return found;
}

void Binding::make_gradients() {
  amp::make_gradients(list_);
  lent_ = std::any_of(list_.begin(), list_.end(), [](auto* m) { return m->master.grad().defined(); });
}

void Binding::lend_gradients() {
  amp::lend_gradients(list_);
}

void Binding::take_step(const optim::StepInputs& inputs) {
  const bool masters_are_ours = master_optimizer_ == nullptr;
  if (scaled_ == nullptr && inputs.found_inf.defined() && inputs.found_inf.item<float>() != 0) {
    return;
  }
  if (masters_are_ours) {
    persistent_ ? refresh(list_) : derive(list_);
  }
  if (fused_ != nullptr) {
    fused_->step_fused(inputs);
  } else if (scaled_ != nullptr) {
    scaled_->step_scaled(inputs.grad_scale, inputs.found_inf);
  } else {
    optimizer_.step();
  }
  if (masters_are_ours) {
    write_back(list_);
  }
}

void Binding::drop_gradients() {
  for (const auto* m : list_) {
    m->parameter.mutable_grad().reset();
  }
  arm();
}

void Binding::arm() {
  for (const auto* m : list_) {
    m->master.mutable_grad() = sentinel_;
  }
  sentinel_version_ = sentinel_._version();
}

void Binding::finish() {
  for_each_parameter(optimizer_, [](at::Tensor& p) { p.mutable_grad().reset(); });
  restart();
}

void Binding::restart() {
  drop_gradients();
  stage = Stage::Scaled;
  found_inf.reset();
  loss_ids.clear();
}

void Binding::zero_grad(bool set_to_none) {
  for_each_parameter(optimizer_, [&](at::Tensor& p) { zero(p.mutable_grad(), set_to_none); });
  for (const auto* m : list_) {
    zero(m->parameter.mutable_grad(), set_to_none);
  }
  arm();
  stage = Stage::Scaled;
}

void Binding::multiply_gradients(const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  const auto multiply = [&](const at::Tensor& p) {
    const auto gradient = p.grad();
    if (gradient.defined() && !gradient.is_same(sentinel_)) {
      gradient.mul_(factor.to(gradient.device()));
    }
  };
  for_each_parameter(optimizer_, multiply);
  for (const auto* m : list_) {
    multiply(m->parameter);
  }
}

}  // namespace lockstep::amp
