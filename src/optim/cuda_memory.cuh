// SPDX-License-Identifier: Apache-2.0
// Values in device memory: conversions to the precision of the arithmetic, and vector loads and stores.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "optim/pass.h"

namespace lockstep::optim {

__device__ __forceinline__ float widen(float x) {
  return x;
}
__device__ __forceinline__ double widen(double x) {
  return x;
}
__device__ __forceinline__ float widen(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <class T, class F>
__device__ __forceinline__ T narrow(F x) {
  return static_cast<T>(x);
}
template <>
__device__ __forceinline__ __half narrow<__half, float>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16, float>(float x) {
  return __float2bfloat16_rn(x);
}

__device__ __forceinline__ bool same_bits(__half a, __half b) {
  return __half_as_ushort(a) == __half_as_ushort(b);
}
__device__ __forceinline__ bool same_bits(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __bfloat16_as_ushort(a) == __bfloat16_as_ushort(b);
}

/// Four elements, moved in words of at most 16 bytes, by plain loads and stores: with streaming ones (.cs), longer
/// packs, bulk copies through shared memory or a grid of resident blocks the update is as fast at best, and the norm
/// before it finds less in the cache.
inline constexpr int kPack = 4;

template <class T>
struct Pack {
  using Word = std::conditional_t<sizeof(T) == 2, uint2, uint4>;
  static constexpr int kWords = sizeof(T) * kPack / sizeof(Word);

  union {
    Word words[kWords];
    T values[kPack];
  };

  __device__ Pack() {}

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = reinterpret_cast<const Word*>(from)[i];
    }
  }

  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      reinterpret_cast<Word*>(to)[i] = words[i];
    }
  }
};

template <class T>
__device__ __forceinline__ bool is_pack_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(typename Pack<T>::Word) == 0;
}

/// Calls `fn.template operator()<T>()` for the type of a kind that is not none.
template <class Fn>
__device__ __forceinline__ void with_device_kind(Kind kind, Fn&& fn) {
  switch (kind) {
    case Kind::f64:
      return fn.template operator()<double>();
    case Kind::f32:
      return fn.template operator()<float>();
    case Kind::f16:
      return fn.template operator()<__half>();
    case Kind::bf16:
      return fn.template operator()<__nv_bfloat16>();
    case Kind::none:
      return;
  }
}

/// Index of the last of `count` rising starts that is not above `block`.
__device__ __forceinline__ int find_start(const std::int32_t* starts, int count, std::int32_t block) {
  int low = 0;
  for (int high = count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (starts[middle] <= block ? low : high) = middle;
  }
  return low;
}

}  // namespace lockstep::optim
