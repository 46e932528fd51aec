// SPDX-License-Identifier: Apache-2.0
#include "optim/engine.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>

#include "core/capturing.h"
#include "core/check.h"
#include "optim/plan.h"

namespace lockstep::optim {
namespace {

constexpr auto kStep = "optim.step";

bool is_low(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

std::string describe(const at::Tensor& tensor) {
  return core::str(tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device(), " (", tensor.layout(), ")");
}

void check_kinds(const Item& item) {
  const auto& parameter = *item.parameter;
  const auto& gradient = *item.gradient;
  const auto weight = item.weight == item.parameter ? kind_of(parameter.scalar_type()) : Kind::f32;
  const auto copy = item.copy != nullptr ? kind_of(item.copy->scalar_type()) : Kind::none;
  const bool strided = parameter.layout() == at::kStrided && gradient.layout() == at::kStrided;
  const bool together = parameter.device() == gradient.device() && (parameter.is_cpu() || parameter.is_cuda());
  const Pass pass{Update::sgd, weight, copy, kind_of(gradient.scalar_type()), {}};
  core::check(strided && together && with_types<float, float>(pass, [](auto) {}), kStep, [&] {
    return core::Problem{"no update for this parameter and gradient",
                         core::str(describe(parameter), " and ", describe(gradient)),
                         "dense fp64, or fp32, fp16 or bf16, both on one CPU or CUDA device"};
  });
}

void check_shapes(const Item& item) {
  const auto wanted = item.parameter->sizes();
  const auto check = [&](const char* what, at::IntArrayRef sizes) {
    core::check(sizes == wanted, kStep, [&] {
      return core::Problem{core::str(what, " has another shape than its parameter"), core::str(sizes),
                           core::str(wanted)};
    });
  };
  check("a gradient", item.gradient->sizes());
  for (const auto* state : item.states) {
    if (state != nullptr && state->defined()) {
      check("a state", state->sizes());
    }
  }
}

at::ScalarType state_dtype(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Whether a pass can walk `tensor` along `parameter` or its dense stand-in.
bool fits(const at::Tensor& tensor, const at::Tensor& parameter) {
  return tensor.defined() && tensor.scalar_type() == state_dtype(parameter) && tensor.device() == parameter.device() &&
         (is_dense(parameter) ? same_walk(tensor, parameter) : tensor.is_contiguous());
}

}  // namespace

Engine::Engine(torch::optim::Optimizer& owner, std::unique_ptr<Schema> schema, FusedOptions options)
    : owner_(owner), schema_(std::move(schema)), options_(options) {
  for (const auto& group : owner_.param_groups()) {
    schema_->recipe(group.options());
  }
}

Slot& Engine::slot_of(const at::Tensor& parameter) {
  return slots_.try_emplace(parameter.unsafeGetTensorImpl(), parameter).first->second;
}

void Engine::forget_the_dead() {
  std::erase_if(slots_, [&](const auto& entry) {
    const bool dead = entry.second.owner.expired();
    if (dead) {
      owner_.state().erase(entry.first);
    }
    return dead;
  });
}

Item Engine::make_item(const at::Tensor& parameter, std::size_t group, Slot& slot) {
  Item item{&parameter, &parameter.grad(), &parameter, nullptr, group, &slot, nullptr, {}};
  const auto pair = pairs_.find(parameter.unsafeGetTensorImpl());
  if (pair != pairs_.end()) {
    item.copy = &pair->second.parameter;
  } else if (options_.master_weights && is_low(parameter)) {
    item.copy = &parameter;
    item.weight = &slot.master;
  }
  const auto state = owner_.state().find(parameter.unsafeGetTensorImpl());
  if (state != owner_.state().end()) {
    item.state = state->second.get();
    item.states = schema_->tensors(*item.state);
  }
  return item;
}

std::vector<Item> Engine::gather() {
  ++serial_;
  recipes_.clear();
  std::vector<Item> items;
  for (std::size_t g = 0; g < owner_.param_groups().size(); ++g) {
    auto& group = owner_.param_groups()[g];
    recipes_.push_back(schema_->recipe(group.options()));
    recipes_.back().hyper.maximize = options_.maximize;
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) {
        continue;
      }
      auto& slot = slot_of(parameter);
      if (std::exchange(slot.serial, serial_) != serial_) {
        items.push_back(make_item(parameter, g, slot));
        check_kinds(items.back());
        check_shapes(items.back());
      }
    }
  }
  return items;
}

void Engine::give_clocks(std::vector<Item>& items) {
  clocks_.begin(serial_);
  for (auto& item : items) {
    auto& clock = item.slot->clock;
    const auto device = item.parameter->device();
    const auto steps = item.state != nullptr ? schema_->steps(*item.state) : 0;
    const bool stateless = state_count(recipes_[item.group].update) == 0;
    const bool fresh = !stateless && (item.state == nullptr || !item.states[0]->defined());
    const bool told_otherwise = steps != item.slot->mirrored;
    if (!clock || fresh || told_otherwise || clock->group != item.group || clock->device() != device) {
      if (clock) {
        --clock->members;
      }
      clock = clocks_.newborn(item.group, device, steps);
      ++clock->members;
    }
    clocks_.join(clock);
  }
  clocks_.settle();
  for (auto& item : items) {
    item.slot->clock = clocks_.settled(item.slot->clock);
  }
}

void Engine::give_storage(std::vector<Item>& items) {
  std::vector<Wanted> wanted;
  const auto want = [&](const at::Tensor& like, at::Tensor& into, const at::Tensor& initial, int lane) {
    if (!fits(into, like)) {
      wanted.push_back({&like, &into, into.defined() ? into : initial, state_dtype(like), lane});
    }
  };
  for (auto& item : items) {
    const int states = state_count(recipes_[item.group].update);
    if (states > 0 && item.state == nullptr) {
      auto& state = owner_.state()[item.parameter->unsafeGetTensorImpl()];
      state = schema_->make_state();
      item.state = state.get();
      item.states = schema_->tensors(*item.state);
    }
    if (item.weight == &item.slot->master) {
      want(*item.parameter, item.slot->master, *item.parameter, kMaxStates);
    }
    for (int i = 0; i < states; ++i) {
      want(*item.parameter, *item.states[static_cast<std::size_t>(i)], {}, i);
    }
  }
  make_adjacent(std::move(wanted));
}

void Engine::finish(const std::vector<Item>& items) {
  for (const auto& item : items) {
    item.weight->unsafeGetTensorImpl()->bump_version();
    if (item.copy != nullptr) {
      item.copy->unsafeGetTensorImpl()->bump_version();
    }
    if (item.state != nullptr) {
      if (item.parameter->is_cpu()) {
        schema_->set_steps(*item.state, item.slot->clock->clock()->steps);
      }
      item.slot->mirrored = schema_->steps(*item.state);
    }
  }
  at::autocast::clear_cache();
}

void Engine::step(const StepInputs& inputs) {
  const at::NoGradGuard no_grad;
  forget_the_dead();
  auto items = gather();
  check_inputs(inputs);
  if (items.empty() || left_out_on_host(inputs)) {
    return;
  }
  give_clocks(items);
  give_storage(items);
  if (options_.capturable && !(items[0].parameter->is_cuda() && core::capturing())) {
    upload_learning_rates();
  }
  Staging staging;
  auto work = plan_passes(items, recipes_, staging);
  std::vector<at::Tensor> keep;
  for (auto& device : work) {
    add_ticks(device, signals_on(device.device, inputs, keep));
    run(device);
  }
  staging.write_back();
  finish(items);
}

void Engine::add_ticks(DeviceWork& work, const Signals& signals) {
  for (const auto& clock : clocks_.taking()) {
    if (clock->device() == work.device) {
      auto& tick = work.ticks.emplace_back(Tick{clock->clock(), recipes_[clock->group].hyper, signals});
      if (options_.capturable) {
        tick.signals.lr = learning_rate(clock->group, work.device).const_data_ptr<double>();
      }
    }
  }
}

}  // namespace lockstep::optim
