// SPDX-License-Identifier: Apache-2.0
// The arithmetic of every update, written once for the CPU loops and the CUDA kernels: no torch type, no memory access.
//
// Each rule names the roundings it makes: a product that is added is one fma, as in ATen's vector code, and nothing
// else may be contracted. So the CPU results do not depend on where a thread's share or a vector begins, SGD equals
// LibTorch's own loop bit for bit, and the kernels equal the CPU.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/both.h"

namespace lockstep::optim {

/// One group's options, as numbers. Which of them count depends on the rule.
struct Hyper {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double decay_gradient = 0;  // weight decay added to the gradient (Adam, SGD)
  double decay_weight = 0;    // weight decay that shrinks the weight itself (AdamW)
  double momentum = 0;
  double dampening = 0;
  bool maximize = false;
  bool adapt = false;  // LAMB: scale the step by the ratio of norms

  friend bool operator==(const Hyper&, const Hyper&) = default;
};

/// What a step reads besides tensors of parameters: addresses on the parameters' device, or null.
struct Signals {
  const float* grad_scale = nullptr;
  const float* found_inf = nullptr;
  const float* clip_factor = nullptr;
  const double* lr = nullptr;  // used in place of Hyper::lr
};

/// Lives on the device, one for every set of parameters that have taken the same steps: their count, and what this
/// step's update needs of it. `advance` is the only writer.
struct Clock {
  std::int64_t steps = 0;
  std::int64_t skip = 0;
  std::int64_t first = 0;  // this is the set's first step
  double unscale = 1;      // multiplies a gradient first, -1 where the objective is maximised
  double clip = 1;         // multiplies it next
  double lr = 0;
  double keep = 1;        // multiplies the weight (AdamW's decay)
  double correction = 1;  // first bias correction
  double step_size = 0;   // lr over it
  double root = 1;        // square root of the second bias correction
  Hyper hyper;
};

/// base^exponent by squaring: the library's pow may differ between host and device, products do not.
LOCKSTEP_BOTH double whole_power(double base, std::int64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent /= 2) {
    power = exponent % 2 != 0 ? power * base : power;
    base *= base;
  }
  return power;
}

/// Decides whether the step is taken, counts it, and works out its coefficients in double precision, as LibTorch does.
LOCKSTEP_BOTH void advance(Clock& clock, const Hyper& hyper, const Signals& signals) {
  clock.skip = signals.found_inf != nullptr && *signals.found_inf != 0.0f;
  if (clock.skip != 0) {
    return;
  }
  clock.first = clock.steps == 0;
  ++clock.steps;
  clock.hyper = hyper;
  clock.lr = signals.lr != nullptr ? *signals.lr : hyper.lr;
  // The reciprocal is rounded to fp32, so that unscaling here equals GradScaler's unscale_.
  const double unscale = signals.grad_scale != nullptr ? static_cast<float>(1.0 / *signals.grad_scale) : 1.0;
  clock.unscale = hyper.maximize ? -unscale : unscale;
  clock.clip = signals.clip_factor != nullptr ? *signals.clip_factor : 1.0;
  clock.keep = 1.0 - clock.lr * hyper.decay_weight;
  clock.correction = 1.0 - whole_power(hyper.beta1, clock.steps);
  clock.step_size = clock.lr / clock.correction;
  clock.root = sqrt(1.0 - whole_power(hyper.beta2, clock.steps));
}

/// The true gradient from the stored one.
template <class F>
struct Gradient {
  F unscale;
  F clip;

  LOCKSTEP_BOTH explicit Gradient(const Clock& c) : unscale(static_cast<F>(c.unscale)), clip(static_cast<F>(c.clip)) {}
  LOCKSTEP_BOTH F operator()(F stored) const { return stored * unscale * clip; }
};

/// Adam and AdamW: the one decays the gradient, the other the weight. https://arxiv.org/abs/1711.05101
template <class F, bool kAmsgrad>
struct AdamRule {
  static constexpr int kStates = kAmsgrad ? 3 : 2;
  F beta1, rest1, beta2, rest2, eps, decay, keep, step_size, root;

  LOCKSTEP_BOTH explicit AdamRule(const Clock& c)
      : beta1(static_cast<F>(c.hyper.beta1)),
        rest1(static_cast<F>(1 - c.hyper.beta1)),
        beta2(static_cast<F>(c.hyper.beta2)),
        rest2(static_cast<F>(1 - c.hyper.beta2)),
        eps(static_cast<F>(c.hyper.eps)),
        decay(static_cast<F>(c.hyper.decay_gradient)),
        keep(static_cast<F>(c.keep)),
        step_size(static_cast<F>(-c.step_size)),
        root(static_cast<F>(c.root)) {}

  LOCKSTEP_BOTH F operator()(F g, F w, F* state) const {
    using std::fma;
    using std::sqrt;
    w *= keep;
    g = decay != F(0) ? fma(w, decay, g) : g;
    state[0] = fma(g, rest1, state[0] * beta1);
    state[1] = fma(g * rest2, g, state[1] * beta2);
    F second = state[1];
    if constexpr (kAmsgrad) {
      state[2] = state[2] < second || second != second ? second : state[2];
      second = state[2];
    }
    return w + step_size * state[0] / (sqrt(second) / root + eps);
  }
};

/// SGD without memory.
template <class F>
struct SgdRule {
  static constexpr int kStates = 0;
  F decay, step_size;

  LOCKSTEP_BOTH explicit SgdRule(const Clock& c)
      : decay(static_cast<F>(c.hyper.decay_gradient)), step_size(static_cast<F>(-c.lr)) {}

  LOCKSTEP_BOTH F operator()(F g, F w, F*) const {
    using std::fma;
    g = decay != F(0) ? fma(w, decay, g) : g;
    return fma(g, step_size, w);
  }
};

/// SGD with momentum. The first step takes the gradient itself as the buffer, without dampening.
template <class F, bool kNesterov>
struct MomentumRule {
  static constexpr int kStates = 1;
  F decay, momentum, rest, step_size;
  F first;  // 0 or 1, in the width of what it selects

  LOCKSTEP_BOTH explicit MomentumRule(const Clock& c)
      : decay(static_cast<F>(c.hyper.decay_gradient)),
        momentum(static_cast<F>(c.hyper.momentum)),
        rest(static_cast<F>(1 - c.hyper.dampening)),
        step_size(static_cast<F>(-c.lr)),
        first(static_cast<F>(c.first)) {}

  LOCKSTEP_BOTH F operator()(F g, F w, F* state) const {
    using std::fma;
    g = decay != F(0) ? fma(w, decay, g) : g;
    state[0] = first != F(0) ? g : fma(g, rest, state[0] * momentum);
    g = kNesterov ? fma(state[0], momentum, g) : state[0];
    return fma(g, step_size, w);
  }
};

/// LAMB, in two passes: a tensor's step is scaled by the norm of its weights over that of Adam's direction, and both
/// are known only when the first pass is through. https://arxiv.org/abs/1904.00962
template <class F>
struct LambRule {
  static constexpr int kStates = 2;
  F beta1, rest1, beta2, rest2, eps, decay, correction, root;

  LOCKSTEP_BOTH explicit LambRule(const Clock& c)
      : beta1(static_cast<F>(c.hyper.beta1)),
        rest1(static_cast<F>(1 - c.hyper.beta1)),
        beta2(static_cast<F>(c.hyper.beta2)),
        rest2(static_cast<F>(1 - c.hyper.beta2)),
        eps(static_cast<F>(c.hyper.eps)),
        decay(static_cast<F>(c.hyper.decay_weight)),
        correction(static_cast<F>(c.correction)),
        root(static_cast<F>(c.root)) {}

  LOCKSTEP_BOTH void update_moments(F g, F* state) const {
    using std::fma;
    state[0] = fma(g, rest1, state[0] * beta1);
    state[1] = fma(g * rest2, g, state[1] * beta2);
  }

  LOCKSTEP_BOTH F direction(F w, const F* state) const {
    using std::fma;
    using std::sqrt;
    return fma(w, decay, state[0] / correction / (sqrt(state[1]) / root + eps));
  }
};

/// The factor of a tensor's direction, from the squares of its weights and of its direction. Negative: a step descends.
LOCKSTEP_BOTH double lamb_factor(const Clock& c, double weights, double directions) {
  const bool adapt = c.hyper.adapt && weights > 0 && directions > 0;
  return -c.lr * (adapt ? sqrt(weights) / sqrt(directions) : 1.0);
}

}  // namespace lockstep::optim
