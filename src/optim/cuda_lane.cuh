// SPDX-License-Identifier: Apache-2.0
// What the update kernels share: spans as kernel arguments, so that a launch needs no device table and can be captured,
// and a thread's share of a span on its way through the registers.
#pragma once

#include <type_traits>

#include "optim/cuda_memory.cuh"
#include "optim/pass.h"

namespace lockstep::optim {

inline constexpr int kThreads = 128;
inline constexpr int kTiles = 2;  // packs a thread has in flight
inline constexpr std::int64_t kBlock = std::int64_t{kThreads} * kPack * kTiles;

/// As many as fit into the 4 KiB of arguments that every launch can carry.
inline constexpr int kSpans = 58;
struct SpanTable {
  Span spans[kSpans];
  std::int32_t starts[kSpans];  // first block of each
  std::int32_t count;
  std::int32_t blocks;
};
static_assert(sizeof(SpanTable) <= 4096);

/// Calls `fn(table)` for one table after the other until all spans have been in one.
template <class Fn>
void for_span_tables(const std::vector<Span>& spans, Fn&& fn) {
  SpanTable table;
  for (std::size_t next = 0; next < spans.size();) {
    std::int64_t blocks = 0;
    for (table.count = 0; table.count < kSpans && next < spans.size(); ++table.count, ++next) {
      table.spans[table.count] = spans[next];
      table.starts[table.count] = static_cast<std::int32_t>(blocks);
      blocks += (spans[next].count + kBlock - 1) / kBlock;
    }
    table.blocks = static_cast<std::int32_t>(blocks);
    fn(table);
  }
}

/// A block's elements of its span. `whole`: a full block, and packs are aligned.
struct Place {
  const Span& span;
  int which;
  std::int64_t begin;
  std::int64_t end;

  __device__ Place(const SpanTable& table, std::int32_t block)
      : span(table.spans[find_start(table.starts, table.count, block)]),
        which(static_cast<int>(&span - table.spans)),
        begin((block - table.starts[which]) * kBlock),
        end(min(begin + kBlock, span.count)) {}

  /// First element of the calling thread's pack in tile `t`.
  __device__ __forceinline__ std::int64_t pack(int t) const {
    return begin + (std::int64_t{t} * kThreads + threadIdx.x) * kPack;
  }
};

/// A pack of elements of a weight, its copy, its gradient and its states.
template <class T, class F, int kStates>
struct Lane {
  using W = typename T::Weight;
  using C = typename T::Copy;
  using G = typename T::Grad;
  static constexpr bool kCopy = !std::is_same_v<C, None>;
  using Low = std::conditional_t<kCopy, C, W>;

  Pack<W> weight;
  Pack<Low> copy;
  Pack<G> grad;
  Pack<F> state[kStates > 0 ? kStates : 1];

  __device__ static bool is_whole(const Place& place) {
    const Span& span = place.span;
    bool aligned = is_pack_aligned<W>(span.weight) && is_pack_aligned<G>(span.grad) && is_pack_aligned<Low>(span.copy);
    for (int s = 0; s < kStates; ++s) {
      aligned = aligned && is_pack_aligned<F>(span.state[s]);
    }
    return aligned && place.end - place.begin == kBlock;
  }

  __device__ __forceinline__ void load(const Span& span, std::int64_t i) {
    grad.load(static_cast<const G*>(span.grad) + i);
    weight.load(static_cast<const W*>(span.weight) + i);
    if constexpr (kCopy) {
      copy.load(static_cast<const C*>(span.copy) + i);
    }
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      state[s].load(static_cast<const F*>(span.state[s]) + i);
    }
  }

  __device__ __forceinline__ void store_weight(const Span& span, std::int64_t i) const {
    weight.store(static_cast<W*>(span.weight) + i);
    if constexpr (kCopy) {
      copy.store(static_cast<C*>(span.copy) + i);
    }
  }

  __device__ __forceinline__ void store_states(const Span& span, std::int64_t i) const {
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      state[s].store(static_cast<F*>(span.state[s]) + i);
    }
  }

  /// The weight of slot k, or its copy where the weight does not round to it: then somebody else wrote the copy.
  __device__ __forceinline__ F weight_at(int k) const {
    const F w = widen(weight.values[k]);
    if constexpr (kCopy) {
      return same_bits(narrow<C>(w), copy.values[k]) ? w : widen(copy.values[k]);
    } else {
      return w;
    }
  }

  __device__ __forceinline__ void set_weight(int k, F w) {
    weight.values[k] = narrow<W>(w);
    if constexpr (kCopy) {
      copy.values[k] = narrow<C>(w);
    }
  }

  __device__ __forceinline__ void get_states(int k, F* states) const {
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      states[s] = state[s].values[k];
    }
  }

  __device__ __forceinline__ void set_states(int k, const F* states) {
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      state[s].values[k] = states[s];
    }
  }

  /// The same for one element, in slot 0, where a pack would be misaligned or reach beyond the end.
  __device__ void load_one(const Span& span, std::int64_t i) {
    grad.values[0] = static_cast<const G*>(span.grad)[i];
    weight.values[0] = static_cast<const W*>(span.weight)[i];
    if constexpr (kCopy) {
      copy.values[0] = static_cast<const C*>(span.copy)[i];
    }
    for (int s = 0; s < kStates; ++s) {
      state[s].values[0] = static_cast<const F*>(span.state[s])[i];
    }
  }

  __device__ void store_weight_one(const Span& span, std::int64_t i) const {
    static_cast<W*>(span.weight)[i] = weight.values[0];
    if constexpr (kCopy) {
      static_cast<C*>(span.copy)[i] = copy.values[0];
    }
  }

  __device__ void store_states_one(const Span& span, std::int64_t i) const {
    for (int s = 0; s < kStates; ++s) {
      static_cast<F*>(span.state[s])[i] = state[s].values[0];
    }
  }
};

}  // namespace lockstep::optim
