// SPDX-License-Identifier: Apache-2.0
// The bias's gradient, a sum over rows, and with it the way back through a GELU. A warp takes 256 columns of a row, a
// block eight rows at a time; blocks leave rows of sums behind, which a second kernel joins.
#include <algorithm>

#include "nn/column_parts.cuh"
#include "nn/fused_kernels.h"

namespace lockstep::nn {
namespace {

constexpr int kWarps = 8;
constexpr int kPack = 8;
constexpr int kColumns = kWarp * kPack;
constexpr int kRowsUnderWay = 4;  // that a warp has asked for before it uses the first
constexpr int kBlocksPerMultiprocessor = 8;
constexpr std::int64_t kFewRows = 256;  // are summed by one block, which needs no second kernel

/// 1 - 2 / (e^2x + 1), to some 1e-6: the result is rounded to 16 bits.
__device__ __forceinline__ float fast_tanh(float x) {
  return 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f);
}

/// The derivative of 0.5 x (1 + tanh(b (x + k x^3))).
__device__ __forceinline__ float gelu_slope(float x) {
  constexpr float kBeta = 0.7978845608028654f;  // sqrt(2 / pi)
  constexpr float kKappa = 0.044715f;
  const float square = x * x;
  const float tanh = fast_tanh(kBeta * x * (1.0f + kKappa * square));
  const float inner_slope = kBeta * (1.0f + 3.0f * kKappa * square);
  return 0.5f * (1.0f + tanh) + 0.5f * x * (1.0f - tanh * tanh) * inner_slope;
}

/// What a lane does with its packs: the place of one in row `row`, and the sums so far.
template <class T, bool kGelu>
struct Lane {
  const BiasGradient& pass;
  const std::int64_t pack;
  float sums[kPack] = {};

  __device__ std::int64_t at(std::int64_t row) const { return row * (pass.width / kPack) + pack; }

  __device__ void add(std::int64_t row, const Pack<T>& gradient, const Pack<T>& before) {
    Pack<T> result;
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float value = wide(gradient.at[k]) * (kGelu ? gelu_slope(wide(before.at[k])) : 1.0f);
      sums[k] += value;
      store(&result.at[k], value);
    }
    if (kGelu) {
      static_cast<Pack<T>*>(pass.of_before)[at(row)] = result;
    }
  }

  /// Rows row, row + step, ... below the end, several loads under way at once.
  __device__ void add_rows(std::int64_t row, std::int64_t step) {
    const auto* gradients = static_cast<const Pack<T>*>(pass.gradient);
    const auto* befores = static_cast<const Pack<T>*>(kGelu ? pass.before : pass.gradient);
    for (; row + (kRowsUnderWay - 1) * step < pass.rows; row += kRowsUnderWay * step) {
      Pack<T> gradient[kRowsUnderWay], before[kRowsUnderWay];
#pragma unroll
      for (int i = 0; i < kRowsUnderWay; ++i) {
        gradient[i] = gradients[at(row + i * step)];
        before[i] = kGelu ? befores[at(row + i * step)] : gradient[i];
      }
#pragma unroll
      for (int i = 0; i < kRowsUnderWay; ++i) {
        add(row + i * step, gradient[i], before[i]);
      }
    }
    for (; row < pass.rows; row += step) {
      add(row, gradients[at(row)], befores[at(row)]);
    }
  }
};

template <class T, bool kGelu>
__global__ void __launch_bounds__(kWarps* kWarp) sum_rows(BiasGradient pass) {
  __shared__ float shared[kWarps][kColumns];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Lane<T, kGelu> mine{pass, static_cast<std::int64_t>(blockIdx.x) * kWarp + lane};
  if (mine.pack < pass.width / kPack) {
    mine.add_rows(static_cast<std::int64_t>(blockIdx.y) * kWarps + warp,
                  static_cast<std::int64_t>(pass.blocks) * kWarps);
  }
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    shared[warp][lane * kPack + k] = mine.sums[k];
  }
  __syncthreads();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  if (column < pass.width) {
    float sum = 0;
    for (int i = 0; i < kWarps; ++i) {
      sum += shared[i][threadIdx.x];
    }
    if (pass.blocks == 1) {
      store(static_cast<T*>(pass.of_bias) + column, sum);
    } else {
      pass.parts[blockIdx.y * pass.width + column] = sum;
    }
  }
}
static_assert(kWarps * kWarp == kColumns, "a thread a column");

template <class T>
__global__ void join_rows(BiasGradient pass) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const float sum = joined_column(pass.parts, pass.blocks, pass.width, column);
  if (threadIdx.y == 0 && column < pass.width) {
    store(static_cast<T*>(pass.of_bias) + column, sum);
  }
}

unsigned column_blocks(std::int64_t width, int columns) {
  return static_cast<unsigned>((width + columns - 1) / columns);
}

template <class T>
void launch(const BiasGradient& pass, CUstream_st* stream) {
  const dim3 grid(column_blocks(pass.width, kColumns), static_cast<unsigned>(pass.blocks));
  if (pass.before != nullptr) {
    sum_rows<T, true><<<grid, kColumns, 0, stream>>>(pass);
  } else {
    sum_rows<T, false><<<grid, kColumns, 0, stream>>>(pass);
  }
  if (pass.blocks > 1) {
    join_rows<T><<<column_blocks(pass.width, kWarp), dim3(kWarp, kSumRows), 0, stream>>>(pass);
  }
}

}  // namespace

int bias_gradient_blocks(std::int64_t rows, std::int64_t width, int multiprocessors) {
  if (rows <= kFewRows) {
    return 1;
  }
  const std::int64_t wanted = multiprocessors * kBlocksPerMultiprocessor / column_blocks(width, kColumns);
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, rows / (kWarps * kRowsUnderWay)));
}

void launch_bias_gradient(const BiasGradient& pass, CUstream_st* stream) {
  pass.element == Element::fp16 ? launch<__half>(pass, stream) : launch<__nv_bfloat16>(pass, stream);
}

}  // namespace lockstep::nn
