// SPDX-License-Identifier: Apache-2.0
// LAMB on CUDA: moments and the squares of weights and directions, then each tensor's factor, then the step. A block's
// sums are made in a fixed order and joined in a fixed order. Built with -fmad=false.
#include <algorithm>

#include "optim/cuda_kernels.h"
#include "optim/cuda_lane.cuh"
#include "optim/cuda_sums.cuh"

namespace lockstep::optim {
namespace {

struct Squares {
  double weights;
  double directions;
};

/// Scratch of one table: a part of every block, then a factor of every span.
struct Scratch {
  Squares* parts;
  double* factors;
};

template <class Lane, class F>
__device__ __forceinline__ void update_moments(Lane& lane, int k, const LambRule<F>& rule,
                                               const Gradient<F>& true_gradient, Squares& sum) {
  F states[kMaxStates] = {};
  lane.get_states(k, states);
  rule.update_moments(true_gradient(widen(lane.grad.values[k])), states);
  lane.set_states(k, states);
  const F w = lane.weight_at(k);
  const double u = rule.direction(w, states);
  sum.weights += static_cast<double>(w) * static_cast<double>(w);
  sum.directions += u * u;
}

template <class Lane, class F>
__device__ Squares moments_of_block(const Place& place, const LambRule<F>& rule, const Gradient<F>& true_gradient) {
  Squares sum{};
  if (!Lane::is_whole(place)) {
    for (std::int64_t i = place.begin + threadIdx.x; i < place.end; i += kThreads) {
      Lane lane;
      lane.load_one(place.span, i);
      update_moments(lane, 0, rule, true_gradient, sum);
      lane.store_states_one(place.span, i);
    }
    return sum;
  }
  for (int t = 0; t < kTiles; ++t) {
    Lane lane;
    lane.load(place.span, place.pack(t));
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      update_moments(lane, k, rule, true_gradient, sum);
    }
    lane.store_states(place.span, place.pack(t));
  }
  return sum;
}

template <class T, class F>
__global__ void __launch_bounds__(kThreads) moments_kernel(const __grid_constant__ SpanTable table, Scratch scratch) {
  const Place place(table, static_cast<std::int32_t>(blockIdx.x));
  const Clock& clock = *place.span.clock;
  if (clock.skip != 0) {
    return;
  }
  const auto sum = moments_of_block<Lane<T, F, 2>>(place, LambRule<F>(clock), Gradient<F>(clock));
  const double weights = sum_in_block(sum.weights);
  const double directions = sum_in_block(sum.directions);
  if (threadIdx.x == 0) {
    scratch.parts[blockIdx.x] = {weights, directions};
  }
}

__global__ void __launch_bounds__(kThreads) factor_kernel(const __grid_constant__ SpanTable table, Scratch scratch) {
  const int which = static_cast<int>(blockIdx.x);
  const int end = which + 1 < table.count ? table.starts[which + 1] : table.blocks;
  Squares sum{};
  for (int i = table.starts[which] + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    sum.weights += scratch.parts[i].weights;
    sum.directions += scratch.parts[i].directions;
  }
  const double weights = sum_in_block(sum.weights);
  const double directions = sum_in_block(sum.directions);
  if (threadIdx.x == 0) {
    scratch.factors[which] = lamb_factor(*table.spans[which].clock, weights, directions);
  }
}

template <class Lane, class F>
__device__ __forceinline__ void step_along(Lane& lane, int k, const LambRule<F>& rule, F factor) {
  F states[kMaxStates] = {};
  lane.get_states(k, states);
  const F w = lane.weight_at(k);
  lane.set_weight(k, fma(rule.direction(w, states), factor, w));
}

template <class T, class F>
__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ SpanTable table, Scratch scratch) {
  using Lanes = Lane<T, F, 2>;
  const Place place(table, static_cast<std::int32_t>(blockIdx.x));
  if (place.span.clock->skip != 0) {
    return;
  }
  const LambRule<F> rule(*place.span.clock);
  const auto factor = static_cast<F>(scratch.factors[place.which]);
  if (!Lanes::is_whole(place)) {
    for (std::int64_t i = place.begin + threadIdx.x; i < place.end; i += kThreads) {
      Lanes lane;
      lane.load_one(place.span, i);
      step_along(lane, 0, rule, factor);
      lane.store_weight_one(place.span, i);
    }
    return;
  }
  for (int t = 0; t < kTiles; ++t) {
    Lanes lane;
    lane.load(place.span, place.pack(t));
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      step_along(lane, k, rule, factor);
    }
    lane.store_weight(place.span, place.pack(t));
  }
}

template <class T, class F>
void launch(const std::vector<Span>& spans, double* scratch, cudaStream_t stream) {
  for_span_tables(spans, [&](const SpanTable& table) {
    const Scratch places{reinterpret_cast<Squares*>(scratch), scratch + std::int64_t{2} * table.blocks};
    const auto blocks = static_cast<unsigned>(table.blocks);
    moments_kernel<T, F><<<blocks, kThreads, 0, stream>>>(table, places);
    factor_kernel<<<static_cast<unsigned>(table.count), kThreads, 0, stream>>>(table, places);
    step_kernel<T, F><<<blocks, kThreads, 0, stream>>>(table, places);
  });
}

}  // namespace

std::int64_t lamb_scratch(const Pass& pass) {
  std::int64_t most = 0;
  for_span_tables(pass.spans,
                  [&](const SpanTable& table) { most = std::max(most, std::int64_t{2} * table.blocks + kSpans); });
  return most;
}

void launch_lamb(const Pass& pass, double* scratch, cudaStream_t stream) {
  with_types<__half, __nv_bfloat16>(pass, [&](auto types) {
    using T = decltype(types);
    launch<T, typename Precision<typename T::Weight>::type>(pass.spans, scratch, stream);
  });
}

}  // namespace lockstep::optim
