// SPDX-License-Identifier: Apache-2.0
// Norms and scaling on CUDA. Every block sums in a fixed order and writes its part, one block sums the parts: the
// result depends on the device's size, not on the order in which blocks run.
#include <algorithm>

#include "optim/cuda_kernels.h"
#include "optim/cuda_memory.cuh"
#include "optim/cuda_sums.cuh"

namespace lockstep::optim {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr std::int64_t kChunk = 8192;  // elements a block takes at a time

constexpr int kSpans = 140;
struct Table {
  GradSpan spans[kSpans];
  std::int32_t starts[kSpans];  // first chunk of each
  int count;
  std::int32_t chunks;
};
static_assert(sizeof(Table) <= 4096);

/// Powers of a few elements, joined. fp32 is enough for so few, unless a square overflows: then again in fp64.
template <Norm kNorm, int kCount, class T>
__device__ __forceinline__ double power_of_few(const T* values) {
  auto power = Power<kNorm>::of(widen(values[0]));
#pragma unroll
  for (int i = 1; i < kCount; ++i) {
    power = Power<kNorm>::join(power, Power<kNorm>::of(widen(values[i])));
  }
  if (isfinite(power)) {
    return power;
  }
  double again = 0;
  for (int i = 0; i < kCount; ++i) {
    again = Power<kNorm>::join(again, Power<kNorm>::of(static_cast<double>(widen(values[i]))));
  }
  return again;
}

template <Norm kNorm, class T>
__device__ double power_of_chunk(const T* data, std::int64_t count) {
  constexpr int kVector = sizeof(uint4) / sizeof(T);
  double power = 0;
  std::int64_t done = 0;
  if (reinterpret_cast<std::uintptr_t>(data) % sizeof(uint4) == 0) {
    done = count / kVector * kVector;
#pragma unroll 4
    for (std::int64_t i = std::int64_t{threadIdx.x} * kVector; i < done; i += kThreads * kVector) {
      // Not a streaming load: the update that follows reads the last of these again.
      const uint4 word = *reinterpret_cast<const uint4*>(data + i);
      power = Power<kNorm>::join(power, power_of_few<kNorm, kVector>(reinterpret_cast<const T*>(&word)));
    }
  }
  for (std::int64_t i = done + threadIdx.x; i < count; i += kThreads) {
    power = Power<kNorm>::join(power, power_of_few<kNorm, 1>(data + i));
  }
  return power;
}

template <Norm kNorm>
struct ChunkPower {
  const GradSpan& span;
  std::int64_t begin;
  double& power;

  template <class T>
  __device__ __forceinline__ void operator()() const {
    const auto count = min(kChunk, span.count - begin);
    power = Power<kNorm>::join(power, power_of_chunk<kNorm>(static_cast<const T*>(span.data) + begin, count));
  }
};

template <Norm kNorm>
__global__ void __launch_bounds__(kThreads) parts_kernel(const __grid_constant__ Table table, double* parts) {
  double power = 0;
  for (auto chunk = static_cast<std::int32_t>(blockIdx.x); chunk < table.chunks;
       chunk += static_cast<std::int32_t>(gridDim.x)) {
    const int which = find_start(table.starts, table.count, chunk);
    const GradSpan& span = table.spans[which];
    with_device_kind(span.kind, ChunkPower<kNorm>{span, (chunk - table.starts[which]) * kChunk, power});
  }
  power = joined_in_block<kNorm>(power);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = power;
  }
}

template <Norm kNorm>
__global__ void total_kernel(const double* parts, std::int64_t count, double* power, ClipTarget target) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    sum = Power<kNorm>::join(sum, parts[i]);
  }
  sum = joined_in_block<kNorm>(sum);
  if (threadIdx.x == 0) {
    *power = sum;
    if (target.norm != nullptr) {
      settle_clip(sum, kNorm, target);
    }
  }
}

__global__ void settle_kernel(const double* power, Norm norm, ClipTarget target) {
  settle_clip(*power, norm, target);
}

struct ScaleChunk {
  const GradSpan& span;
  std::int64_t begin;
  float factor;

  template <class T>
  __device__ __forceinline__ void operator()() const {
    auto* data = static_cast<T*>(span.data) + begin;
    const auto count = min(kChunk, span.count - begin);
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
      const auto wide = widen(data[i]);
      data[i] = narrow<T>(wide * static_cast<decltype(wide + 0)>(factor));
    }
  }
};

__global__ void __launch_bounds__(kThreads) scale_kernel(const __grid_constant__ Table table, const float* factor) {
  if (*factor == 1.0f) {
    return;
  }
  const auto chunk = static_cast<std::int32_t>(blockIdx.x);
  const int which = find_start(table.starts, table.count, chunk);
  const GradSpan& span = table.spans[which];
  with_device_kind(span.kind, ScaleChunk{span, (chunk - table.starts[which]) * kChunk, *factor});
}

/// Calls `fn(table)` for one table after the other until all spans have been in one.
template <class Fn>
void for_tables(const std::vector<GradSpan>& spans, Fn&& fn) {
  Table table;
  for (std::size_t next = 0; next < spans.size();) {
    std::int64_t chunks = 0;
    for (table.count = 0; table.count < kSpans && next < spans.size(); ++table.count, ++next) {
      table.spans[table.count] = spans[next];
      table.starts[table.count] = static_cast<std::int32_t>(chunks);
      chunks += (spans[next].count + kChunk - 1) / kChunk;
    }
    table.chunks = static_cast<std::int32_t>(chunks);
    fn(table);
  }
}

int blocks_for(const Table& table, int multiprocessors) {
  return std::min(table.chunks, multiprocessors * kBlocksPerMultiprocessor);
}

template <Norm kNorm>
void launch_power_of(const std::vector<GradSpan>& spans, int multiprocessors, double* parts, double* power,
                     const ClipTarget* target, cudaStream_t stream) {
  std::int64_t done = 0;
  for_tables(spans, [&](const Table& table) {
    const int blocks = blocks_for(table, multiprocessors);
    parts_kernel<kNorm><<<blocks, kThreads, 0, stream>>>(table, parts + done);
    done += blocks;
  });
  total_kernel<kNorm><<<1, 1024, 0, stream>>>(parts, done, power, target != nullptr ? *target : ClipTarget{});
}

}  // namespace

std::int64_t power_parts(const std::vector<GradSpan>& spans, int multiprocessors) {
  std::int64_t parts = 0;
  for_tables(spans, [&](const Table& table) { parts += blocks_for(table, multiprocessors); });
  return parts;
}

void launch_power(const std::vector<GradSpan>& spans, Norm norm, int multiprocessors, double* parts, double* power,
                  const ClipTarget* target, cudaStream_t stream) {
  switch (norm) {
    case Norm::one:
      return launch_power_of<Norm::one>(spans, multiprocessors, parts, power, target, stream);
    case Norm::two:
      return launch_power_of<Norm::two>(spans, multiprocessors, parts, power, target, stream);
    case Norm::inf:
      return launch_power_of<Norm::inf>(spans, multiprocessors, parts, power, target, stream);
  }
}

void launch_settle(const double* power, Norm norm, const ClipTarget& target, cudaStream_t stream) {
  settle_kernel<<<1, 1, 0, stream>>>(power, norm, target);
}

void launch_scale(const std::vector<GradSpan>& spans, const float* factor, cudaStream_t stream) {
  for_tables(spans, [&](const Table& table) {
    scale_kernel<<<static_cast<unsigned>(table.chunks), kThreads, 0, stream>>>(table, factor);
  });
}

}  // namespace lockstep::optim
