// SPDX-License-Identifier: Apache-2.0
// The update on CUDA: one read and one write of everything, limited by memory. Built with -fmad=false: the rules name
// their fma themselves.
#include <algorithm>

#include "optim/cuda_kernels.h"
#include "optim/cuda_lane.cuh"

namespace lockstep::optim {
namespace {

constexpr int kTicks = 32;
struct TickTable {
  Tick ticks[kTicks];
  int count;
};
static_assert(sizeof(TickTable) <= 4096);

template <class Lane, class Rule, class F>
__device__ __forceinline__ void update(Lane& lane, int k, const Rule& rule, const Gradient<F>& true_gradient) {
  F states[kMaxStates] = {};
  lane.get_states(k, states);
  lane.set_weight(k, rule(true_gradient(widen(lane.grad.values[k])), lane.weight_at(k), states));
  lane.set_states(k, states);
}

/// A block's elements one by one, a thread each in turn.
template <class Lane, class Rule, class F>
__device__ void update_one_by_one(const Place& place, const Rule& rule, const Gradient<F>& true_gradient) {
  for (std::int64_t i = place.begin + threadIdx.x; i < place.end; i += kThreads) {
    Lane lane;
    lane.load_one(place.span, i);
    update(lane, 0, rule, true_gradient);
    lane.store_weight_one(place.span, i);
    lane.store_states_one(place.span, i);
  }
}

template <class T, class Rule, class F>
__global__ void __launch_bounds__(kThreads) update_kernel(const __grid_constant__ SpanTable table) {
  using Lanes = Lane<T, F, Rule::kStates>;
  // Backwards: a norm pass that read the gradients before has left the last of them in the cache.
  const Place place(table, static_cast<std::int32_t>(gridDim.x - 1 - blockIdx.x));
  const bool whole = Lanes::is_whole(place);
  // Loads go out before the clock is looked at, so that the two waits are one.
  Lanes lanes[kTiles];
#pragma unroll
  for (int t = 0; whole && t < kTiles; ++t) {
    lanes[t].load(place.span, place.pack(t));
  }
  if (place.span.clock->skip != 0) {
    return;
  }
  const Rule rule(*place.span.clock);
  const Gradient<F> true_gradient(*place.span.clock);
  if (!whole) {
    return update_one_by_one<Lanes>(place, rule, true_gradient);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      update(lanes[t], k, rule, true_gradient);
    }
    lanes[t].store_weight(place.span, place.pack(t));
    lanes[t].store_states(place.span, place.pack(t));
  }
}

__global__ void tick_kernel(const __grid_constant__ TickTable table) {
  if (threadIdx.x < table.count) {
    const Tick& tick = table.ticks[threadIdx.x];
    advance(*tick.clock, tick.hyper, tick.signals);
  }
}

template <class T, class Rule, class F>
void launch(const std::vector<Span>& spans, cudaStream_t stream) {
  for_span_tables(spans, [&](const SpanTable& table) {
    update_kernel<T, Rule, F><<<static_cast<unsigned>(table.blocks), kThreads, 0, stream>>>(table);
  });
}

template <class T>
struct LaunchRule {
  const std::vector<Span>& spans;
  cudaStream_t stream;

  template <class Rule>
  void operator()() const {
    launch<T, Rule, typename Precision<typename T::Weight>::type>(spans, stream);
  }
};

}  // namespace

void launch_ticks(const std::vector<Tick>& ticks, cudaStream_t stream) {
  TickTable table;
  for (std::size_t next = 0; next < ticks.size(); next += kTicks) {
    table.count = static_cast<int>(std::min<std::size_t>(kTicks, ticks.size() - next));
    std::copy_n(ticks.begin() + static_cast<std::ptrdiff_t>(next), table.count, table.ticks);
    tick_kernel<<<1, kTicks, 0, stream>>>(table);
  }
}

void launch_pass(const Pass& pass, cudaStream_t stream) {
  with_types<__half, __nv_bfloat16>(pass, [&](auto types) {
    using T = decltype(types);
    with_rule<typename Precision<typename T::Weight>::type>(pass.update, LaunchRule<T>{pass.spans, stream});
  });
}

}  // namespace lockstep::optim
