// SPDX-License-Identifier: Apache-2.0
// Cross-entropy, one block a row. Forward reads a row once: maximum and sum of exponentials are kept up to date
// together (https://arxiv.org/abs/1805.02867). Backward reads it once more and writes the gradient.
#include <cmath>
#include <type_traits>

#include "nn/cuda_packs.cuh"
#include "nn/fused_kernels.h"

namespace lockstep::nn {
namespace {

constexpr int kThreads = 512;

/// exp(x - most) for an x that is not above `most`; 0 for -inf, whatever `most` is.
__device__ float term(float x, float most) {
  return x == -INFINITY ? 0.0f : __expf(x - most);
}

/// Of some logits: the largest, the sum of exp(x - most), and their plain sum.
struct Sums {
  float most = -INFINITY;
  float exponentials = 0;
  float plain = 0;

  __device__ void raise(float to) {
    exponentials *= most == to ? 1.0f : term(most, to);
    most = to;
  }

  __device__ void join(Sums other) {
    const float higher = fmaxf(most, other.most);
    raise(higher);
    other.raise(higher);
    exponentials += other.exponentials;
    plain += other.plain;
  }
};

__device__ Sums shuffled(const Sums& sums, int offset) {
  Sums other;
  other.most = __shfl_down_sync(0xffffffffu, sums.most, offset);
  other.exponentials = __shfl_down_sync(0xffffffffu, sums.exponentials, offset);
  other.plain = __shfl_down_sync(0xffffffffu, sums.plain, offset);
  return other;
}

__device__ void join_warp(Sums& sums) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sums.join(shuffled(sums, offset));
  }
}

/// Over the block, in a fixed order; in thread 0. All threads call it.
__device__ void join_block(Sums& sums) {
  __shared__ float parts[3][kThreads / kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  join_warp(sums);
  if (lane == 0) {
    parts[0][warp] = sums.most;
    parts[1][warp] = sums.exponentials;
    parts[2][warp] = sums.plain;
  }
  __syncthreads();
  if (warp == 0) {
    const bool filled = lane < kThreads / kWarp;
    sums = Sums();
    if (filled) {
      sums.most = parts[0][lane];
      sums.exponentials = parts[1][lane];
      sums.plain = parts[2][lane];
    }
    join_warp(sums);
  }
}

template <class T, int kSize>
__device__ Sums sums_of(const T* row, std::int64_t classes) {
  const auto* packs = reinterpret_cast<const Pack<T, kSize>*>(row);
  Sums sums;
  for (std::int64_t i = threadIdx.x; i < classes / kSize; i += kThreads) {
    const Pack<T, kSize> pack = packs[i];
    float most = sums.most;
    for (int k = 0; k < kSize; ++k) {
      most = fmaxf(most, wide(pack.at[k]));
    }
    sums.raise(most);
    for (int k = 0; k < kSize; ++k) {
      const float x = wide(pack.at[k]);
      sums.exponentials += term(x, most);
      sums.plain += x;
    }
  }
  return sums;
}

/// The plain sum is left out of it without smoothing: it may be infinite where a class is ruled out.
template <class T>
__device__ float loss_of(const LossRows& rows, const T* row, std::int64_t target, const Sums& sums, float log_sum) {
  if (target == rows.options.ignore_index) {
    return 0;
  }
  if (target < 0 || target >= rows.classes) {
    return NAN;
  }
  const float hard = log_sum - wide(row[target]);
  const float smoothing = rows.options.smoothing;
  return smoothing == 0
             ? hard
             : (1 - smoothing) * hard + smoothing * (log_sum - sums.plain / static_cast<float>(rows.classes));
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) row_losses(LossRows rows, float* losses, float* log_sums) {
  const T* row = static_cast<const T*>(rows.logits) + blockIdx.x * rows.classes;
  Sums sums = sums_of<T, kSize>(row, rows.classes);
  join_block(sums);
  if (threadIdx.x == 0) {
    const float log_sum = sums.most + logf(sums.exponentials);
    log_sums[blockIdx.x] = log_sum;
    losses[blockIdx.x] = loss_of(rows, row, rows.targets[blockIdx.x], sums, log_sum);
  }
}

/// What multiplies a row's gradient. An ignored row has none, whatever its logits are.
__device__ float scale_of(const LossRows& rows, std::int64_t target, float scale) {
  return target == rows.options.ignore_index ? 0 : target < 0 || target >= rows.classes ? NAN : scale;
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    row_gradients(LossRows rows, const float* log_sums, const float* scales, T* output) {
  const std::int64_t begin = blockIdx.x * rows.classes;
  const auto* from = reinterpret_cast<const Pack<T, kSize>*>(static_cast<const T*>(rows.logits) + begin);
  auto* to = reinterpret_cast<Pack<T, kSize>*>(output + begin);
  const std::int64_t target = rows.targets[blockIdx.x];
  const bool ignored = target == rows.options.ignore_index;
  const float log_sum = log_sums[blockIdx.x];
  const float scale = scale_of(rows, target, scales[blockIdx.x]);
  const float hit = 1 - rows.options.smoothing;
  const float spread = rows.options.smoothing / static_cast<float>(rows.classes);
  for (std::int64_t i = threadIdx.x; i < rows.classes / kSize; i += kThreads) {
    const Pack<T, kSize> in = from[i];
    Pack<T, kSize> out;
    for (int k = 0; k < kSize; ++k) {
      const float away = term(wide(in.at[k]), log_sum) - spread - (i * kSize + k == target ? hit : 0.0f);
      store(&out.at[k], ignored ? 0.0f : away * scale);
    }
    to[i] = out;
  }
}

bool aligned(const void* pointer, std::int64_t row_bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes == 0 && row_bytes % kPackBytes == 0;
}

/// Calls `fn(T(), std::integral_constant<int, elements a load>())`.
template <class T, class Fn>
void with_pack(const LossRows& rows, const void* output, Fn&& fn) {
  const auto row_bytes = rows.classes * static_cast<std::int64_t>(sizeof(T));
  if (aligned(rows.logits, row_bytes) && aligned(output, row_bytes)) {
    fn(T(), std::integral_constant<int, kPackBytes / sizeof(T)>());
  } else {
    fn(T(), std::integral_constant<int, 1>());
  }
}

template <class Fn>
void with_element(const LossRows& rows, const void* output, Fn&& fn) {
  if (rows.rows == 0 || rows.classes == 0) {
    return;
  }
  switch (rows.element) {
    case Element::fp16:
      return with_pack<__half>(rows, output, fn);
    case Element::bf16:
      return with_pack<__nv_bfloat16>(rows, output, fn);
    default:
      return with_pack<float>(rows, output, fn);
  }
}

}  // namespace

void launch_row_losses(const LossRows& rows, float* losses, float* log_sums, CUstream_st* stream) {
  with_element(rows, nullptr, [&]<class T, int kSize>(T, std::integral_constant<int, kSize>) {
    row_losses<T, kSize><<<static_cast<unsigned>(rows.rows), kThreads, 0, stream>>>(rows, losses, log_sums);
  });
}

void launch_row_gradients(const LossRows& rows, const float* log_sums, const float* scales, void* output,
                          CUstream_st* stream) {
  with_element(rows, output, [&]<class T, int kSize>(T, std::integral_constant<int, kSize>) {
    row_gradients<T, kSize>
        <<<static_cast<unsigned>(rows.rows), kThreads, 0, stream>>>(rows, log_sums, scales, static_cast<T*>(output));
  });
}

}  // namespace lockstep::nn
