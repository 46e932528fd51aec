// SPDX-License-Identifier: Apache-2.0
// Layer norm, a warp a row, which it holds in registers between the sums and the result.
#include <algorithm>
#include <type_traits>

#include "nn/column_parts.cuh"
#include "nn/fused_kernels.h"

namespace lockstep::nn {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kPack = 8;                     // 16-bit elements a load
constexpr int kLanePacks = kWarp * kPack;    // elements that a warp loads at once
constexpr int kBlocksPerMultiprocessor = 2;  // in backward: each leaves a row of partial sums behind

/// A row's packs that belong to this lane: the first is at `lane`, the next a warp further.
template <class T, int kPacks>
struct Lane {
  const int lane = threadIdx.x % kWarp;
  const int packs;

  __device__ explicit Lane(std::int64_t width) : packs(static_cast<int>(width / kPack)) {}
  __device__ int at(int p) const { return p * kWarp + lane; }
  __device__ bool has(int p) const { return at(p) < packs; }

  __device__ Pack<T> load(const void* row, int p) const { return static_cast<const Pack<T>*>(row)[at(p)]; }
  __device__ void save(void* row, int p, const Pack<T>& pack) const { static_cast<Pack<T>*>(row)[at(p)] = pack; }
};

template <class T>
__device__ const void* row_of(const void* tensor, std::int64_t row, std::int64_t width) {
  return static_cast<const T*>(tensor) + row * width;
}
template <class T>
__device__ void* row_of(void* tensor, std::int64_t row, std::int64_t width) {
  return static_cast<T*>(tensor) + row * width;
}

/// The sum as it is stored: what is normalised is what the residual stream holds.
template <class T>
__device__ Pack<T> added(const Pack<T>& a, const Pack<T>& b) {
  Pack<T> sum;
  for (int k = 0; k < kPack; ++k) {
    store(&sum.at[k], wide(a.at[k]) + wide(b.at[k]));
  }
  return sum;
}

template <class T, int kPacks>
__device__ void load_row(const NormRows& rows, const AddNorm& pass, std::int64_t row, Pack<T> (&values)[kPacks]) {
  const Lane<T, kPacks> mine(rows.width);
  const void* x = row_of<T>(pass.x, row, rows.width);
  for (int p = 0; p < kPacks; ++p) {
    if (mine.has(p)) {
      values[p] = mine.load(x, p);
      if (pass.residual != nullptr) {
        values[p] = added(values[p], mine.load(row_of<T>(pass.residual, row, rows.width), p));
        mine.save(row_of<T>(pass.sum, row, rows.width), p, values[p]);
      }
    }
  }
}

struct Statistics {
  float mean, inverse_deviation;
};

/// The variance is summed from the differences to the mean: nothing cancels.
template <class T, int kPacks>
__device__ Statistics statistics_of(const NormRows& rows, float eps, const Pack<T> (&values)[kPacks]) {
  const Lane<T, kPacks> mine(rows.width);
  const auto count = static_cast<float>(rows.width);
  float sum = 0, squares = 0;
  for (int p = 0; p < kPacks; ++p) {
    for (int k = 0; k < kPack && mine.has(p); ++k) {
      sum += wide(values[p].at[k]);
    }
  }
  const float mean = warp_sum(sum) / count;
  for (int p = 0; p < kPacks; ++p) {
    for (int k = 0; k < kPack && mine.has(p); ++k) {
      const float apart = wide(values[p].at[k]) - mean;
      squares += apart * apart;
    }
  }
  return {mean, rsqrtf(warp_sum(squares) / count + eps)};
}

template <class T, int kPacks>
__global__ void __launch_bounds__(kThreads) add_norm(NormRows rows, AddNorm pass) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= rows.rows) {
    return;
  }
  const Lane<T, kPacks> mine(rows.width);
  Pack<T> values[kPacks];
  load_row(rows, pass, row, values);
  const Statistics found = statistics_of(rows, pass.eps, values);
  for (int p = 0; p < kPacks; ++p) {
    if (mine.has(p)) {
      const Pack<T> weight = mine.load(rows.weight, p), bias = mine.load(pass.bias, p);
      Pack<T> out;
      for (int k = 0; k < kPack; ++k) {
        const float normed = (wide(values[p].at[k]) - found.mean) * found.inverse_deviation;
        store(&out.at[k], normed * wide(weight.at[k]) + wide(bias.at[k]));
      }
      mine.save(row_of<T>(pass.normed, row, rows.width), p, out);
    }
  }
  if (mine.lane == 0) {
    pass.means[row] = found.mean;
    pass.inverse_deviations[row] = found.inverse_deviation;
  }
}

/// Sums of a warp's rows, for its lane's columns.
template <int kPacks>
struct ColumnSums {
  float weight[kPacks][kPack] = {};
  float bias[kPacks][kPack] = {};
};

/// One row's gradient; its share is added to `sums`.
template <class T, int kPacks>
__device__ void row_backward(const NormRows& rows, const NormBackward& pass, std::int64_t row,
                             ColumnSums<kPacks>& sums) {
  const Lane<T, kPacks> mine(rows.width);
  const float mean = pass.means[row], inverse = pass.inverse_deviations[row];
  Pack<T> given[kPacks], values[kPacks], passed[kPacks] = {};
  float plain = 0, along = 0;  // of gradient * weight, and of that * normed
  for (int p = 0; p < kPacks; ++p) {
    if (mine.has(p)) {
      given[p] = mine.load(row_of<T>(pass.of_normed, row, rows.width), p);
      values[p] = mine.load(row_of<T>(pass.sum, row, rows.width), p);
      if (pass.of_sum != nullptr) {  // asked for early: used only after the row's sums
        passed[p] = mine.load(row_of<T>(pass.of_sum, row, rows.width), p);
      }
    }
  }
  for (int p = 0; p < kPacks; ++p) {
    if (mine.has(p)) {
      const Pack<T> weight = mine.load(rows.weight, p);
      for (int k = 0; k < kPack; ++k) {
        const float gradient = wide(given[p].at[k]);
        const float normed = (wide(values[p].at[k]) - mean) * inverse;
        sums.weight[p][k] += gradient * normed;
        sums.bias[p][k] += gradient;
        plain += gradient * wide(weight.at[k]);
        along += gradient * wide(weight.at[k]) * normed;
      }
    }
  }
  plain = warp_sum(plain) / static_cast<float>(rows.width);
  along = warp_sum(along) / static_cast<float>(rows.width);
  for (int p = 0; p < kPacks; ++p) {
    if (mine.has(p)) {
      const Pack<T> weight = mine.load(rows.weight, p);
      Pack<T> out;
      for (int k = 0; k < kPack; ++k) {
        const float normed = (wide(values[p].at[k]) - mean) * inverse;
        const float through = inverse * (wide(given[p].at[k]) * wide(weight.at[k]) - plain - normed * along);
        store(&out.at[k], pass.of_sum != nullptr ? through + wide(passed[p].at[k]) : through);
      }
      mine.save(row_of<T>(pass.of_x, row, rows.width), p, out);
    }
  }
}

/// Joins the warps' sums, in order, and leaves the block's in its row of `parts`. All threads call it.
template <int kPacks>
__device__ void save_block(const float (&sums)[kPacks][kPack], std::int64_t width, float* parts) {
  __shared__ float shared[kWarps][kLanePacks];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int p = 0; p < kPacks; ++p) {
    __syncthreads();
    for (int k = 0; k < kPack; ++k) {
      shared[warp][lane * kPack + k] = sums[p][k];
    }
    __syncthreads();
    const int column = p * kLanePacks + static_cast<int>(threadIdx.x);
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      sum += shared[w][threadIdx.x];
    }
    if (column < width) {
      parts[column] = sum;
    }
  }
}
static_assert(kThreads == kLanePacks, "a thread joins one column of each pack");

template <class T, int kPacks>
__global__ void __launch_bounds__(kThreads) norm_backward(NormRows rows, NormBackward pass) {
  ColumnSums<kPacks> sums;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  for (std::int64_t row = first; row < rows.rows; row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    row_backward<T, kPacks>(rows, pass, row, sums);
  }
  save_block(sums.weight, rows.width, pass.parts + blockIdx.x * rows.width);
  save_block(sums.bias, rows.width, pass.parts + (gridDim.x + blockIdx.x) * rows.width);
}

/// Sums the blocks' rows: a column a thread of the first dimension, weights where blockIdx.y is 0, else biases.
template <class T>
__global__ void join_parts(NormRows rows, NormBackward pass) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const float* parts = pass.parts + static_cast<std::int64_t>(blockIdx.y) * pass.blocks * rows.width;
  const float sum = joined_column(parts, pass.blocks, rows.width, column);
  if (threadIdx.y == 0 && column < rows.width) {
    store(static_cast<T*>(blockIdx.y == 0 ? pass.of_weight : pass.of_bias) + column, sum);
  }
}

unsigned row_blocks(const NormRows& rows) {
  return static_cast<unsigned>((rows.rows + kWarps - 1) / kWarps);
}

template <class T, class Fn>
void with_packs(const NormRows& rows, Fn&& fn) {
  const auto packs = (rows.width + kLanePacks - 1) / kLanePacks;
  if (packs <= 1) {
    fn(T(), std::integral_constant<int, 1>());
  } else if (packs <= 3) {
    fn(T(), std::integral_constant<int, 3>());
  } else if (packs <= 4) {
    fn(T(), std::integral_constant<int, 4>());
  } else {
    fn(T(), std::integral_constant<int, 8>());
  }
}

/// Calls `fn(T(), std::integral_constant<int, packs a lane>())`.
template <class Fn>
void with_row(const NormRows& rows, Fn&& fn) {
  if (rows.element == Element::fp16) {
    with_packs<__half>(rows, fn);
  } else {
    with_packs<__nv_bfloat16>(rows, fn);
  }
}

}  // namespace

void launch_add_norm(const NormRows& rows, const AddNorm& pass, CUstream_st* stream) {
  with_row(rows, [&]<class T, int kPacks>(T, std::integral_constant<int, kPacks>) {
    add_norm<T, kPacks><<<row_blocks(rows), kThreads, 0, stream>>>(rows, pass);
  });
}

int norm_blocks(const NormRows& rows, int multiprocessors) {
  return static_cast<int>(std::min<std::int64_t>(row_blocks(rows), multiprocessors * kBlocksPerMultiprocessor));
}

void launch_norm_backward(const NormRows& rows, const NormBackward& pass, CUstream_st* stream) {
  with_row(rows, [&]<class T, int kPacks>(T, std::integral_constant<int, kPacks>) {
    norm_backward<T, kPacks><<<static_cast<unsigned>(pass.blocks), kThreads, 0, stream>>>(rows, pass);
    const dim3 grid(static_cast<unsigned>((rows.width + kWarp - 1) / kWarp), 2);
    join_parts<T><<<grid, dim3(kWarp, kSumRows), 0, stream>>>(rows, pass);
  });
}

}  // namespace lockstep::nn
