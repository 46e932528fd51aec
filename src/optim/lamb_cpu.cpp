// SPDX-License-Identifier: Apache-2.0
// LAMB on the host. Squares are summed in double precision, block by block in a fixed order, whatever the threads.
#include <type_traits>

#include "optim/cpu_loops.h"

namespace lockstep::optim {
namespace {

constexpr std::int64_t kBlock = 4096;
constexpr std::int64_t kLanes = 8;

struct Squares {
  double weights = 0;
  double directions = 0;
};

/// A span's arrays by their types.
template <class T, class F>
struct Arrays {
  using W = Memory<typename T::Weight>;
  using C = Memory<typename T::Copy>;
  using G = Memory<typename T::Grad>;
  static constexpr bool kCopy = !std::is_same_v<typename T::Copy, None>;

  typename W::Cell* __restrict weight;
  typename C::Cell* __restrict copy;
  const typename G::Cell* __restrict grad;
  F* __restrict state0;
  F* __restrict state1;

  [[gnu::always_inline]] explicit Arrays(const Span& span)
      : weight(static_cast<typename W::Cell*>(span.weight)),
        copy(static_cast<typename C::Cell*>(span.copy)),
        grad(static_cast<const typename G::Cell*>(span.grad)),
        state0(static_cast<F*>(span.state[0])),
        state1(static_cast<F*>(span.state[1])) {}

  [[gnu::always_inline]] F load_weight(std::int64_t i) const {
    const F w = W::load(weight[i]);
    if constexpr (kCopy) {
      return fresh<typename T::Copy>(w, copy[i]);
    } else {
      return w;
    }
  }

  [[gnu::always_inline]] void store_weight(std::int64_t i, F w) const {
    weight[i] = W::store(w);
    if constexpr (kCopy) {
      copy[i] = C::store(w);
    }
  }
};

template <class T, class F>
[[gnu::always_inline]] inline Squares update_moments(const Span& span, std::int64_t begin, std::int64_t end) {
  const LambRule<F> rule(*span.clock);
  const Gradient<F> true_gradient(*span.clock);
  const Arrays<T, F> arrays(span);
  double weights[kLanes] = {};
  double directions[kLanes] = {};
  const auto one = [&](std::int64_t i, std::int64_t lane) __attribute__((always_inline)) {
    const F w = arrays.load_weight(i);
    F state[2] = {arrays.state0[i], arrays.state1[i]};
    rule.update_moments(true_gradient(Arrays<T, F>::G::load(arrays.grad[i])), state);
    arrays.state0[i] = state[0];
    arrays.state1[i] = state[1];
    const double u = rule.direction(w, state);
    weights[lane] += static_cast<double>(w) * static_cast<double>(w);
    directions[lane] += u * u;
  };
  const std::int64_t whole = begin + (end - begin) / kLanes * kLanes;
  for (std::int64_t i = begin; i < whole; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      one(i + lane, lane);
    }
  }
  for (std::int64_t i = whole; i < end; ++i) {
    one(i, 0);
  }
  Squares sum;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    sum.weights += weights[lane];
    sum.directions += directions[lane];
  }
  return sum;
}

template <class T, class F>
[[gnu::always_inline]] inline void step_along(const Span& span, F factor, std::int64_t begin, std::int64_t end) {
  const LambRule<F> rule(*span.clock);
  const Arrays<T, F> arrays(span);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const F w = arrays.load_weight(i);
    const F state[2] = {arrays.state0[i], arrays.state1[i]};
    arrays.store_weight(i, std::fma(rule.direction(w, state), factor, w));
  }
}

template <class T, class F>
void run(const Span& span) {
  std::vector<Squares> parts(static_cast<std::size_t>((span.count + kBlock - 1) / kBlock));
  at::parallel_for(0, static_cast<std::int64_t>(parts.size()), kGrain / kBlock, [&](auto begin, auto end) {
    for (auto block = begin; block < end; ++block) {
      const auto stop = std::min((block + 1) * kBlock, span.count);
      core::wide([&]() __attribute__((always_inline)) {
        parts[static_cast<std::size_t>(block)] = update_moments<T, F>(span, block * kBlock, stop);
      });
    }
  });
  Squares sum;
  for (const auto& part : parts) {
    sum.weights += part.weights;
    sum.directions += part.directions;
  }
  const auto factor = static_cast<F>(lamb_factor(*span.clock, sum.weights, sum.directions));
  at::parallel_for(0, span.count, kGrain, [&](auto begin, auto end) {
    core::wide([&]() __attribute__((always_inline)) { step_along<T, F>(span, factor, begin, end); });
  });
}

}  // namespace

void run_lamb_on_cpu(const Pass& pass) {
  with_types<F16, BF16>(pass, [&]<class T>(T) {
    for (const auto& span : pass.spans) {
      if (span.clock->skip == 0) {
        run<T, typename Precision<typename T::Weight>::type>(span);
      }
    }
  });
}

}  // namespace lockstep::optim
