// SPDX-License-Identifier: Apache-2.0
// The update on CUDA: one read and one write of everything, limited by memory. Spans travel as kernel arguments, so
// that a launch needs no device table and can be captured. Built with -fmad=false: the rules name their fma themselves.
#include <algorithm>
#include <type_traits>

#include "optim/cuda_kernels.h"
#include "optim/cuda_memory.cuh"

namespace lockstep::optim {
namespace {

constexpr int kThreads = 256;
constexpr int kTiles = 2;  // packs a thread has in flight
constexpr std::int64_t kBlock = std::int64_t{kThreads} * kPack * kTiles;

/// As many as fit into the 4 KiB of arguments that every launch can carry.
constexpr int kSpans = 58;
struct Table {
  Span spans[kSpans];
  std::int32_t starts[kSpans];  // first block of each
  int count;
};
static_assert(sizeof(Table) <= 4096);

constexpr int kTicks = 32;
struct TickTable {
  Tick ticks[kTicks];
  int count;
};
static_assert(sizeof(TickTable) <= 4096);

/// One thread's pack of four elements on its way through the registers.
template <class T, class Rule, class F>
struct Lane {
  using W = typename T::Weight;
  using C = typename T::Copy;
  using G = typename T::Grad;
  static constexpr bool kCopy = !std::is_same_v<C, None>;
  using Low = std::conditional_t<kCopy, C, W>;

  Pack<W> weight;
  Pack<Low> copy;
  Pack<G> grad;
  Pack<F> state[Rule::kStates > 0 ? Rule::kStates : 1];

  __device__ static bool is_aligned(const Span& span) {
    bool aligned = is_pack_aligned<W>(span.weight) && is_pack_aligned<G>(span.grad) && is_pack_aligned<Low>(span.copy);
    for (int s = 0; s < Rule::kStates; ++s) {
      aligned = aligned && is_pack_aligned<F>(span.state[s]);
    }
    return aligned;
  }

  __device__ __forceinline__ void load(const Span& span, std::int64_t i) {
    grad.load(static_cast<const G*>(span.grad) + i);
    weight.load(static_cast<const W*>(span.weight) + i);
    if constexpr (kCopy) {
      copy.load(static_cast<const C*>(span.copy) + i);
    }
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) {
      state[s].load(static_cast<const F*>(span.state[s]) + i);
    }
  }

  __device__ __forceinline__ void store(const Span& span, std::int64_t i) const {
    weight.store(static_cast<W*>(span.weight) + i);
    if constexpr (kCopy) {
      copy.store(static_cast<C*>(span.copy) + i);
    }
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) {
      state[s].store(static_cast<F*>(span.state[s]) + i);
    }
  }

  __device__ __forceinline__ void update(const Rule& rule, const Gradient<F>& true_gradient, int k) {
    F w = widen(weight.values[k]);
    if constexpr (kCopy) {
      // Where the master does not round to its copy, somebody else wrote the copy.
      w = same_bits(narrow<C>(w), copy.values[k]) ? w : widen(copy.values[k]);
    }
    F states[kMaxStates] = {};
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) {
      states[s] = state[s].values[k];
    }
    w = rule(true_gradient(widen(grad.values[k])), w, states);
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) {
      state[s].values[k] = states[s];
    }
    weight.values[k] = narrow<W>(w);
    if constexpr (kCopy) {
      copy.values[k] = narrow<C>(w);
    }
  }

  /// The same for one element, in slot 0, where a pack would be misaligned or reach beyond the end.
  __device__ void load_one(const Span& span, std::int64_t i) {
    grad.values[0] = static_cast<const G*>(span.grad)[i];
    weight.values[0] = static_cast<const W*>(span.weight)[i];
    if constexpr (kCopy) {
      copy.values[0] = static_cast<const C*>(span.copy)[i];
    }
    for (int s = 0; s < Rule::kStates; ++s) {
      state[s].values[0] = static_cast<const F*>(span.state[s])[i];
    }
  }

  __device__ void store_one(const Span& span, std::int64_t i) const {
    static_cast<W*>(span.weight)[i] = weight.values[0];
    if constexpr (kCopy) {
      static_cast<C*>(span.copy)[i] = copy.values[0];
    }
    for (int s = 0; s < Rule::kStates; ++s) {
      static_cast<F*>(span.state[s])[i] = state[s].values[0];
    }
  }
};

/// Elements [begin, end) one by one, a thread each in turn.
template <class T, class Rule, class F>
__device__ void update_one_by_one(const Span& span, const Rule& rule, const Gradient<F>& true_gradient,
                                  std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    Lane<T, Rule, F> lane;
    lane.load_one(span, i);
    lane.update(rule, true_gradient, 0);
    lane.store_one(span, i);
  }
}

template <class T, class Rule, class F>
__global__ void __launch_bounds__(kThreads) update_kernel(const __grid_constant__ Table table) {
  // Backwards: a norm pass that read the gradients before has left the last of them in the cache.
  const auto block = static_cast<std::int32_t>(gridDim.x - 1 - blockIdx.x);
  const int which = find_start(table.starts, table.count, block);
  const Span& span = table.spans[which];
  if (span.clock->skip != 0) {
    return;
  }
  const Rule rule(*span.clock);
  const Gradient<F> true_gradient(*span.clock);
  const std::int64_t begin = (block - table.starts[which]) * kBlock;
  const std::int64_t end = min(begin + kBlock, span.count);
  if (end - begin < kBlock || !Lane<T, Rule, F>::is_aligned(span)) {
    return update_one_by_one<T, Rule, F>(span, rule, true_gradient, begin, end);
  }
  Lane<T, Rule, F> lanes[kTiles];
  const std::int64_t first = begin + std::int64_t{threadIdx.x} * kPack;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    lanes[t].load(span, first + t * kThreads * kPack);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      lanes[t].update(rule, true_gradient, k);
    }
    lanes[t].store(span, first + t * kThreads * kPack);
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
  Table table;
  for (std::size_t next = 0; next < spans.size();) {
    std::int64_t blocks = 0;
    for (table.count = 0; table.count < kSpans && next < spans.size(); ++table.count, ++next) {
      table.spans[table.count] = spans[next];
      table.starts[table.count] = static_cast<std::int32_t>(blocks);
      blocks += (spans[next].count + kBlock - 1) / kBlock;
    }
    update_kernel<T, Rule, F><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(table);
  }
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
