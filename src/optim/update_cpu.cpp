// SPDX-License-Identifier: Apache-2.0
// The update on the host: plain loops over spans that the compiler turns into vector code, shared out by elements.
#include <type_traits>

#include "optim/cpu_loops.h"

namespace lockstep::optim {
namespace {

template <class T, class Rule, class F>
[[gnu::always_inline]] inline void update(const Span& span, std::int64_t begin, std::int64_t end) {
  using W = Memory<typename T::Weight>;
  using C = Memory<typename T::Copy>;
  using G = Memory<typename T::Grad>;
  constexpr bool kCopy = !std::is_same_v<typename T::Copy, None>;
  const Rule rule(*span.clock);
  const Gradient<F> true_gradient(*span.clock);
  auto* __restrict weight = static_cast<typename W::Cell*>(span.weight);
  [[maybe_unused]] auto* __restrict copy = static_cast<typename C::Cell*>(span.copy);
  const auto* __restrict grad = static_cast<const typename G::Cell*>(span.grad);
  auto* __restrict state0 = static_cast<F*>(span.state[0]);
  auto* __restrict state1 = static_cast<F*>(span.state[1]);
  auto* __restrict state2 = static_cast<F*>(span.state[2]);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    F w = W::load(weight[i]);
    if constexpr (kCopy) {
      w = fresh<typename T::Copy>(w, copy[i]);
    }
    F state[kMaxStates] = {};
    if constexpr (Rule::kStates > 0)
      state[0] = state0[i];
    if constexpr (Rule::kStates > 1)
      state[1] = state1[i];
    if constexpr (Rule::kStates > 2)
      state[2] = state2[i];
    w = rule(true_gradient(G::load(grad[i])), w, state);
    if constexpr (Rule::kStates > 0)
      state0[i] = state[0];
    if constexpr (Rule::kStates > 1)
      state1[i] = state[1];
    if constexpr (Rule::kStates > 2)
      state2[i] = state[2];
    weight[i] = W::store(w);
    if constexpr (kCopy) {
      copy[i] = C::store(w);
    }
  }
}

void run(const Pass& pass) {
  with_types<F16, BF16>(pass, [&]<class T>(T) {
    using F = typename Precision<typename T::Weight>::type;
    with_rule<F>(pass.update, [&]<class Rule>() {
      share_out(pass.spans, [](const Span& span, std::int64_t begin, std::int64_t end) {
        if (span.clock->skip == 0) {
          core::wide([&]() __attribute__((always_inline)) { update<T, Rule, F>(span, begin, end); });
        }
      });
    });
  });
}

}  // namespace

void run_on_cpu(const std::vector<Tick>& ticks, const std::vector<Pass>& passes) {
  for (const auto& tick : ticks) {
    advance(*tick.clock, tick.hyper, tick.signals);
  }
  for (const auto& pass : passes) {
    pass.update == Update::lamb ? run_lamb_on_cpu(pass) : run(pass);
  }
}

}  // namespace lockstep::optim
