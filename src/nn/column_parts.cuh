// SPDX-License-Identifier: Apache-2.0
// The second half of a sum over rows: each block of a first kernel has left a row of fp32 sums behind.
#pragma once

#include <cstdint>

#include "nn/cuda_packs.cuh"

namespace lockstep::nn {

inline constexpr int kSumRows = 16;  // threads that share a column

/// The sum of a column of `parts`, [blocks, width], in a fixed order; whole where threadIdx.y is 0. For blocks of kWarp
/// by kSumRows threads, all of which call it.
__device__ inline float joined_column(const float* parts, int blocks, std::int64_t width, std::int64_t column) {
  __shared__ float shared[kSumRows][kWarp];
  float sum = 0;
  for (int block = threadIdx.y; block < blocks && column < width; block += kSumRows) {
    sum += parts[block * width + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  for (int i = 1; i < kSumRows && threadIdx.y == 0; ++i) {
    sum += shared[i][threadIdx.x];
  }
  return sum;
}

}  // namespace lockstep::nn
