// SPDX-License-Identifier: Apache-2.0
// Sums over a block, in a fixed order.
#pragma once

#include "optim/norm.h"

namespace lockstep::optim {

inline constexpr int kWarp = 32;

/// Joined over the block by Power<kNorm>; in thread 0. All threads call it.
template <Norm kNorm>
__device__ double joined_in_block(double power) {
  __shared__ double warps[kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    power = Power<kNorm>::join(power, __shfl_down_sync(0xffffffffu, power, offset));
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) {
    warps[threadIdx.x / kWarp] = power;
  }
  __syncthreads();
  power = 0;
  for (int i = 0; threadIdx.x == 0 && i < blockDim.x / kWarp; ++i) {
    power = Power<kNorm>::join(power, warps[i]);
  }
  return power;
}

/// The sum over the block; in thread 0. All threads call it.
__device__ __forceinline__ double sum_in_block(double value) {
  return joined_in_block<Norm::one>(value);
}

}  // namespace lockstep::optim
