// SPDX-License-Identifier: Apache-2.0
// What an update pass is, in plain numbers and addresses, so that CUDA sources need no torch header.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/rules.h"

namespace lockstep::optim {

enum class Kind : std::uint8_t { none, f64, f32, f16, bf16 };

enum class Update : std::uint8_t { adam, amsgrad, sgd, momentum, nesterov, lamb };

inline constexpr int kMaxStates = 3;

/// Elements that lie in a row in every array. States are fp32, or fp64 where the weight is.
struct Span {
  void* weight = nullptr;
  void* copy = nullptr;  // low precision copy of the weight, or null
  const void* grad = nullptr;
  void* state[kMaxStates] = {};
  std::int64_t count = 0;
  const Clock* clock = nullptr;
};

/// Spans that one loop, or one kernel, serves.
struct Pass {
  Update update;
  Kind weight;
  Kind copy;
  Kind grad;
  std::vector<Span> spans;
};

/// One set of parameters to be advanced.
struct Tick {
  Clock* clock = nullptr;
  Hyper hyper;
  Signals signals;
};

template <class W, class C, class G>
struct Types {
  using Weight = W;
  using Copy = C;
  using Grad = G;
};

/// Stands for the copy that is not there.
struct None {};

/// Calls `fn(Types<W, C, G>{})` for a pass's kinds and returns true, or returns false if no loop serves them.
/// `Low16` and `LowB16` are the caller's types for fp16 and bf16.
template <class Low16, class LowB16, class Fn>
bool with_types(const Pass& pass, Fn&& fn) {
  const auto is = [&](Kind w, Kind c, Kind g) { return pass.weight == w && pass.copy == c && pass.grad == g; };
  using enum Kind;
  // clang-format off
  if (is(f32, none, f32)) { fn(Types<float, None, float>{}); return true; }
  if (is(f32, none, f16)) { fn(Types<float, None, Low16>{}); return true; }
  if (is(f32, none, bf16)) { fn(Types<float, None, LowB16>{}); return true; }
  if (is(f32, f16, f16)) { fn(Types<float, Low16, Low16>{}); return true; }
  if (is(f32, f16, f32)) { fn(Types<float, Low16, float>{}); return true; }
  if (is(f32, bf16, bf16)) { fn(Types<float, LowB16, LowB16>{}); return true; }
  if (is(f32, bf16, f32)) { fn(Types<float, LowB16, float>{}); return true; }
  if (is(f16, none, f16)) { fn(Types<Low16, None, Low16>{}); return true; }
  if (is(f16, none, f32)) { fn(Types<Low16, None, float>{}); return true; }
  if (is(bf16, none, bf16)) { fn(Types<LowB16, None, LowB16>{}); return true; }
  if (is(bf16, none, f32)) { fn(Types<LowB16, None, float>{}); return true; }
  if (is(f64, none, f64)) { fn(Types<double, None, double>{}); return true; }
  // clang-format on
  return false;
}

/// Calls `fn.template operator()<Rule>()` for the rule of `update` in precision F, if one pass is enough for it.
template <class F, class Fn>
void with_rule(Update update, Fn&& fn) {
  switch (update) {
    case Update::adam:
      return fn.template operator()<AdamRule<F, false>>();
    case Update::amsgrad:
      return fn.template operator()<AdamRule<F, true>>();
    case Update::sgd:
      return fn.template operator()<SgdRule<F>>();
    case Update::momentum:
      return fn.template operator()<MomentumRule<F, false>>();
    case Update::nesterov:
      return fn.template operator()<MomentumRule<F, true>>();
    case Update::lamb:
      return;  // two passes with a reduction between them: lamb_cpu.cpp, lamb_kernel.cu
  }
}

/// Precision of the arithmetic for a weight of type W.
template <class W>
struct Precision {
  using type = float;
};
template <>
struct Precision<double> {
  using type = double;
};

/// LAMB's passes on the host; each span is one tensor.
void run_lamb_on_cpu(const Pass& pass);

/// On the host: advances the clocks, then runs the passes, on ATen's intra-op threads.
void run_on_cpu(const std::vector<Tick>& ticks, const std::vector<Pass>& passes);

/// The same on CUDA device `device`, in the order of its current stream, without waiting. A build without CUDA throws
/// InputError.
void run_on_cuda(int device, const std::vector<Tick>& ticks, const std::vector<Pass>& passes);

}  // namespace lockstep::optim
