// SPDX-License-Identifier: Apache-2.0
#include "lockstep/amp/autocast.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/check.h"

namespace lockstep::amp {
namespace {

using core::str;
namespace native = at::autocast;

constexpr std::array kDeviceTypes = {c10::kCPU, c10::kCUDA};
constexpr const char* kSavedState = "lockstep.autocast";

void put_in_force(const AutocastState& state) {
  for (const auto type : kDeviceTypes) {
    native::set_autocast_enabled(type, state.device(type).enabled);
    native::set_autocast_dtype(type, state.device(type).dtype);
  }
  native::set_autocast_cache_enabled(state.cache);
}

// ATen's cache is keyed by the weight alone: a cast made for one dtype would be handed out in a region of another.
bool casts_differ(const AutocastState& a, const AutocastState& b) {
  return a.cpu.dtype != b.cpu.dtype || a.cuda.dtype != b.cuda.dtype;
}

bool available(c10::DeviceType type) {
  if (type != c10::kCUDA || at::globalContext().hasCUDA()) {
    return true;
  }
  TORCH_WARN_ONCE("[amp.autocast] no CUDA device is available: autocast for CUDA stays off");
  return false;
}

AutocastState changed(c10::DeviceType type, std::optional<at::ScalarType> dtype, bool enabled, bool cache) {
  auto state = AutocastState::current();
  auto& device = state.device(type);
  const auto chosen = dtype.value_or(type == c10::kCUDA ? at::kHalf : at::kBFloat16);
  core::check(!enabled || chosen == at::kHalf || chosen == at::kBFloat16, "amp.autocast", [&] {
    return core::Problem{"autocast cannot use this dtype", str(chosen), "Half or BFloat16",
                         "pass enabled = false to switch autocast off in a region"};
  });
  device.enabled = enabled && available(type);
  if (device.enabled) {
    device.dtype = chosen;
  }
  state.cache = cache;
  return state;
}

AutocastState switched_off(c10::DeviceType type) {
  auto state = AutocastState::current();
  state.device(type).enabled = false;
  return state;
}

void note(torch::autograd::AutogradContext* ctx, const AutocastState& state) {
  std::vector<std::int64_t> numbers;
  for (const auto type : kDeviceTypes) {
    numbers.push_back(state.device(type).enabled ? 1 : 0);
    numbers.push_back(static_cast<std::int64_t>(state.device(type).dtype));
  }
  numbers.push_back(state.cache ? 1 : 0);
  ctx->saved_data[kSavedState] = numbers;
}

AutocastState noted(torch::autograd::AutogradContext* ctx) {
  const auto found = ctx->saved_data.find(kSavedState);
  core::check(found != ctx->saved_data.end(), "amp.custom_bwd", [] {
    return core::Problem{.what = "forward noted no autocast state",
                         .advice = "begin forward with `amp::custom_fwd region(ctx);`"};
  });
  const auto numbers = found->second.toIntVector();
  AutocastState state;
  std::size_t at = 0;
  for (const auto type : kDeviceTypes) {
    state.device(type).enabled = numbers[at++] != 0;
    state.device(type).dtype = static_cast<at::ScalarType>(numbers[at++]);
  }
  state.cache = numbers[at] != 0;
  return state;
}

}  // namespace

AutocastState AutocastState::current() {
  AutocastState state;
  for (const auto type : kDeviceTypes) {
    state.device(type) = {native::is_autocast_enabled(type), native::get_autocast_dtype(type)};
  }
  state.cache = native::is_autocast_cache_enabled();
  return state;
}

const AutocastState::Device& AutocastState::device(c10::DeviceType type) const {
  core::check(type == c10::kCPU || type == c10::kCUDA, "amp.autocast", [&] {
    return core::Problem{"no autocast for this device type", str(type), "cpu or cuda"};
  });
  return type == c10::kCPU ? cpu : cuda;
}

AutocastState::Device& AutocastState::device(c10::DeviceType type) {
  return const_cast<Device&>(std::as_const(*this).device(type));
}

AutocastStateGuard::AutocastStateGuard(const AutocastState& state)
    : previous_(AutocastState::current()), other_dtype_(casts_differ(previous_, state)) {
  if (other_dtype_) {
    native::clear_cache();
  }
  native::increment_nesting();
  put_in_force(state);
}

AutocastStateGuard::~AutocastStateGuard() {
  if (native::decrement_nesting() == 0 || other_dtype_) {
    native::clear_cache();
  }
  put_in_force(previous_);
}

autocast::autocast(c10::DeviceType device_type, std::optional<at::ScalarType> dtype, bool enabled, bool cache)
    : guard_(changed(device_type, dtype, enabled, cache)) {}

void weights_changed() {
  native::clear_cache();
}

custom_fwd::custom_fwd(torch::autograd::AutogradContext* ctx) : guard_(AutocastState::current()) {
  note(ctx, AutocastState::current());
}

custom_fwd::custom_fwd(torch::autograd::AutogradContext* ctx, c10::DeviceType device_type, at::ScalarType cast_inputs)
    : device_type_(device_type), guard_(switched_off(device_type)) {
  if (guard_.previous().device(device_type).enabled) {
    cast_inputs_ = cast_inputs;
  }
  note(ctx, AutocastState::current());
}

at::Tensor custom_fwd::cast_tensor(const at::Tensor& tensor) const {
  const bool eligible = cast_inputs_ && tensor.is_floating_point() && tensor.device().type() == device_type_ &&
                        tensor.scalar_type() != at::kDouble;
  return eligible ? tensor.to(*cast_inputs_) : tensor;
}

custom_bwd::custom_bwd(torch::autograd::AutogradContext* ctx) : guard_(noted(ctx)) {}

}  // namespace lockstep::amp
