// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/amp/nested.h"
#include "lockstep/export.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace lockstep::amp {

/// One thread's autocast state for CPU and CUDA tensors: what a guard saves, and what can be carried to other threads.
struct LOCKSTEP_API AutocastState {
  struct Device {
    bool enabled = false;
    at::ScalarType dtype = at::kBFloat16;
    bool operator==(const Device&) const = default;
  };
  Device cpu;
  Device cuda;
  bool cache = true;

  /// The calling thread's.
  static AutocastState current();

  /// Throws InputError for any type but CPU and CUDA.
  Device& device(c10::DeviceType type);
  const Device& device(c10::DeviceType type) const;
};

/// Puts a state in force on this thread and restores the former one when it goes out of scope.
class LOCKSTEP_API AutocastStateGuard {
 public:
  explicit AutocastStateGuard(const AutocastState& state);
  ~AutocastStateGuard();
  AutocastStateGuard(const AutocastStateGuard&) = delete;
  AutocastStateGuard& operator=(const AutocastStateGuard&) = delete;

  /// The state that will be restored.
  const AutocastState& previous() const { return previous_; }

 private:
  AutocastState previous_;
  bool other_dtype_;
};

/// Operations on tensors of `device_type` inside the guard's scope run in the dtype that suits them, as under Python's
/// torch.autocast: matrix products and convolutions in `dtype`, reductions, losses and exponentials in fp32.
///
/// `dtype`: kHalf or kBFloat16; none: fp16 for CUDA, bf16 for the CPU. `enabled = false` switches autocast off inside
/// a region; tensors cast by the region around it keep their dtype there.
///
/// `cache`: keep the cast of a weight until the outermost region of this thread ends, so that a weight used many times
/// is cast once. It is off by default, since a cached cast is not noticed to be out of date when the weight is
/// written inside the region: with it on, call `weights_changed()` after every such write.
///
/// State is per thread and per device type: other threads start with autocast off (see `with_autocast`). Leave the
/// region before `backward()`, which runs each operation in the dtype that forward chose.
///
/// Throws InputError for another dtype. CUDA without a CUDA device: warns once and stays off, as Python does.
class LOCKSTEP_API autocast {
 public:
  explicit autocast(c10::DeviceType device_type, std::optional<at::ScalarType> dtype = std::nullopt,
                    bool enabled = true, bool cache = false);

 private:
  AutocastStateGuard guard_;
};

/// Forgets cached casts of weights. For code that writes weights inside a region with `cache = true`; Lockstep's own
/// scaler and optimizers call it. Costs nanoseconds.
LOCKSTEP_API void weights_changed();

/// `fn` bound to the autocast state of the thread that calls `with_autocast`, for use in another thread, or later (a
/// block that is recomputed in backward).
template <class Fn>
auto with_autocast(Fn fn) {
  return [state = AutocastState::current(), fn = std::move(fn)](auto&&... args) mutable -> decltype(auto) {
    const AutocastStateGuard guard(state);
    return std::invoke(fn, std::forward<decltype(args)>(args)...);
  };
}

/// First line of the forward of a torch::autograd::Function, as a local variable. Notes the autocast state, in which
/// `custom_bwd` will run the backward.
///
/// With `cast_inputs`, autocast is off in the rest of forward, and in backward, and `cast` converts the arguments:
///
///     static Tensor forward(AutogradContext* ctx, Tensor x) {
///       const amp::custom_fwd region(ctx, torch::kCUDA, torch::kFloat);
///       x = region.cast(x);
class LOCKSTEP_API custom_fwd {
 public:
  explicit custom_fwd(torch::autograd::AutogradContext* ctx);
  custom_fwd(torch::autograd::AutogradContext* ctx, c10::DeviceType device_type, at::ScalarType cast_inputs);

  /// Floating tensors of the device type (double ones excepted), alone or in containers, in `cast_inputs`; unchanged
  /// where autocast was off around the call, or without `cast_inputs`.
  template <class T>
  T cast(const T& value) const {
    return map_tensors(value, [this](const at::Tensor& t) { return cast_tensor(t); });
  }

 private:
  at::Tensor cast_tensor(const at::Tensor& tensor) const;

  c10::DeviceType device_type_ = c10::kCPU;
  std::optional<at::ScalarType> cast_inputs_;
  AutocastStateGuard guard_;
};

/// First line of the backward whose forward began with `custom_fwd`, as a local variable: the rest runs in the state
/// noted there, whatever the state of the thread that runs it. Throws InputError where forward noted none.
class LOCKSTEP_API custom_bwd {
 public:
  explicit custom_bwd(torch::autograd::AutogradContext* ctx);

 private:
  AutocastStateGuard guard_;
};

}  // namespace lockstep::amp
