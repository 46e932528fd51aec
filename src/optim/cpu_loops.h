// SPDX-License-Identifier: Apache-2.0
// What the loops on the host share. Included only by files built with the loops' flags (see CMakeLists.txt).
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "core/low_precision.h"
#include "core/wide.h"
#include "optim/pass.h"

namespace lockstep::optim {

using core::BF16;
using core::F16;

inline constexpr std::int64_t kGrain = 1 << 14;  // elements a thread is worth waking for

/// How a value of type T lies in memory.
template <class T>
struct Memory {
  using Cell = T;
  static T load(T cell) { return cell; }
  static T store(T value) { return value; }
};

template <class T>
struct LowMemory {
  using Cell = typename T::Bits;
  static float load(Cell cell) { return T::widen(cell); }
  static Cell store(float value) { return T::narrow(value); }
};
template <>
struct Memory<F16> : LowMemory<F16> {};
template <>
struct Memory<BF16> : LowMemory<BF16> {};
template <>
struct Memory<None> {
  using Cell = char;
};

/// The master where it rounds to its copy, and the copy where it does not: then somebody else wrote the copy.
template <class C>
[[gnu::always_inline]] inline float fresh(float master, std::uint32_t copy) {
  const std::uint32_t rounded = C::narrow(master);
  return rounded == copy ? master : C::widen(static_cast<std::uint16_t>(copy));
}

/// Calls `fn.template operator()<T>()` for the type of a kind that is not none.
template <class Fn>
void with_kind(Kind kind, Fn&& fn) {
  switch (kind) {
    case Kind::f64:
      return fn.template operator()<double>();
    case Kind::f32:
      return fn.template operator()<float>();
    case Kind::f16:
      return fn.template operator()<F16>();
    case Kind::bf16:
      return fn.template operator()<BF16>();
    case Kind::none:
      return;
  }
}

/// Calls `work(span, begin, end)` for every span, each thread a share of equal size whatever the spans' lengths.
template <class Spans, class Work>
void share_out(const Spans& spans, const Work& work) {
  std::vector<std::int64_t> starts{0};
  for (const auto& span : spans) {
    starts.push_back(starts.back() + span.count);
  }
  at::parallel_for(0, starts.back(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    auto i = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), begin) - starts.begin() - 1);
    for (; begin < end; ++i) {
      const auto stop = std::min(end, starts[i + 1]);
      work(spans[i], begin - starts[i], stop - starts[i]);
      begin = stop;
    }
  });
}

}  // namespace lockstep::optim
