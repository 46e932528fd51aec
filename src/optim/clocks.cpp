// SPDX-License-Identifier: Apache-2.0
#include "optim/clocks.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace lockstep::optim {
namespace {

constexpr std::int64_t kWords = sizeof(Clock) / sizeof(std::int64_t);
static_assert(sizeof(Clock) % sizeof(std::int64_t) == 0);
static_assert(offsetof(Clock, steps) == 0, "read_steps and newborn look at word 0");

ClockHandle make_clock(std::size_t group, at::Tensor memory, std::int64_t born_at) {
  auto cell = std::make_shared<ClockCell>();
  cell->memory = std::move(memory);
  cell->group = group;
  cell->born_at = born_at;
  return cell;
}

}  // namespace

void Clocks::begin(std::uint64_t serial) {
  serial_ = serial;
  newborn_.clear();
  joined_.clear();
  taking_.clear();
}

ClockHandle Clocks::newborn(std::size_t group, c10::Device device, std::int64_t steps) {
  const auto same = [&](const ClockHandle& c) {
    return c->group == group && c->device() == device && c->born_at == steps;
  };
  const auto found = std::find_if(newborn_.begin(), newborn_.end(), same);
  if (found != newborn_.end()) {
    return *found;
  }
  auto memory = at::zeros({kWords}, at::TensorOptions().dtype(at::kLong).device(device));
  if (steps != 0) {
    memory[0].fill_(steps);
  }
  return newborn_.emplace_back(make_clock(group, std::move(memory), steps));
}

void Clocks::join(const ClockHandle& clock) {
  if (clock->serial != serial_) {
    clock->serial = serial_;
    clock->taking = 0;
    clock->split.reset();
    joined_.push_back(clock);
  }
  ++clock->taking;
}

void Clocks::settle() {
  for (const auto& clock : joined_) {
    if (clock->taking != clock->members) {
      clock->members -= clock->taking;
      clock->split = make_clock(clock->group, clock->memory.clone(), clock->born_at);
      clock->split->members = clock->taking;
    }
    taking_.push_back(settled(clock));
  }
}

}  // namespace lockstep::optim
