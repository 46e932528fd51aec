// SPDX-License-Identifier: Apache-2.0
// A channels-last tensor as a matrix with a row for each place and a column for each channel. A thread keeps to a pack
// of eight channels and walks down the rows, a block to one chunk of channels.
#pragma once

#include "nn/cuda_packs.cuh"
#include "nn/fused_kernels.h"

namespace lockstep::nn {

inline constexpr int kThreads = 256;
inline constexpr int kPack = 8;

/// Which channels and which rows are this thread's.
struct Place {
  int packs;           // of this block
  int pack;            // this thread's, in the whole row
  int lanes;           // rows that the block works on at once
  std::int64_t row;    // the first
  std::int64_t steps;  // rows to the next
  bool idle;

  __device__ explicit Place(const BatchNormShape& shape) {
    const int all = static_cast<int>(shape.channels / kPack);
    const int begin = static_cast<int>(blockIdx.y) * kThreads;
    packs = min(all - begin, kThreads);
    lanes = kThreads / packs;
    const int lane = static_cast<int>(threadIdx.x) / packs;
    pack = begin + static_cast<int>(threadIdx.x) % packs;
    row = static_cast<std::int64_t>(blockIdx.x) * lanes + lane;
    steps = static_cast<std::int64_t>(gridDim.x) * lanes;
    idle = lane >= lanes;
  }
};

/// Calls `ask(i, row)` for up to kAtOnce of this thread's rows, and then `use(i, row)` for the same, until all have had
/// their turn: loads of several rows are under way at once.
template <int kAtOnce, class Ask, class Use>
__device__ __forceinline__ void walk(const BatchNormShape& shape, const Place& place, Ask&& ask, Use&& use) {
  for (std::int64_t first = place.row; first < shape.rows && !place.idle; first += kAtOnce * place.steps) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * place.steps < shape.rows) {
        ask(i, first + i * place.steps);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * place.steps < shape.rows) {
        use(i, first + i * place.steps);
      }
    }
  }
}

template <class T>
__device__ Pack<T> load(const void* tensor, const BatchNormShape& shape, std::int64_t row, int pack) {
  return static_cast<const Pack<T>*>(tensor)[row * (shape.channels / kPack) + pack];
}
template <class T>
__device__ void save(void* tensor, const BatchNormShape& shape, std::int64_t row, int pack, const Pack<T>& values) {
  static_cast<Pack<T>*>(tensor)[row * (shape.channels / kPack) + pack] = values;
}

struct Channels {
  float at[kPack] = {};

  Channels() = default;
  __device__ Channels(const float* values, int pack) {
    for (int k = 0; k < kPack; ++k) {
      at[k] = values[pack * kPack + k];
    }
  }
};

__device__ inline Channels operator*(const Channels& a, const Channels& b) {
  Channels product;
  for (int k = 0; k < kPack; ++k) {
    product.at[k] = a.at[k] * b.at[k];
  }
  return product;
}

__device__ inline Channels operator*(float a, const Channels& b) {
  Channels product;
  for (int k = 0; k < kPack; ++k) {
    product.at[k] = a * b.at[k];
  }
  return product;
}

/// Adds the block's lanes in order and leaves the sums in the block's row of `parts`. All threads call it.
__device__ inline void save_sums(const BatchNormShape& shape, const Place& place, const Channels& sums, float* parts) {
  __shared__ float shared[kThreads][kPack];
  __syncthreads();
  for (int k = 0; k < kPack; ++k) {
    shared[threadIdx.x][k] = sums.at[k];
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < place.packs) {
    for (int k = 0; k < kPack; ++k) {
      float sum = 0;
      for (int lane = 0; lane < place.lanes; ++lane) {
        sum += shared[lane * place.packs + threadIdx.x][k];
      }
      parts[blockIdx.x * shape.channels + place.pack * kPack + k] = sum;
    }
  }
}

}  // namespace lockstep::nn
