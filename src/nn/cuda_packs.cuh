// SPDX-License-Identifier: Apache-2.0
// Elements in packs of a wide load, computed with in fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace lockstep::nn {

inline constexpr int kWarp = 32;
inline constexpr int kPackBytes = 16;  // the widest load

template <class T, int kSize = kPackBytes / sizeof(T)>
struct alignas(sizeof(T) * kSize) Pack {
  T at[kSize];
};

__device__ inline float wide(float x) {
  return x;
}
__device__ inline float wide(__half x) {
  return __half2float(x);
}
__device__ inline float wide(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

__device__ inline void store(float* to, float x) {
  *to = x;
}
__device__ inline void store(__half* to, float x) {
  *to = __float2half_rn(x);
}
__device__ inline void store(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16_rn(x);
}

/// Over the warp, in a fixed order; in all lanes.
__device__ inline float warp_sum(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

}  // namespace lockstep::nn
