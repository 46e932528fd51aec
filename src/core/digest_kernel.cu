// SPDX-License-Identifier: Apache-2.0
// The digest on CUDA. Blocks take chunks and add what they find to the spans' sums with integer atomics: the order does
// not change an integer sum, so the result is that of the host.
#include <algorithm>

#include "core/digest_kernel.h"
#include "core/mix.h"

namespace lockstep::core {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr std::int64_t kWord = 8;
constexpr std::int64_t kChunk = kDigestWords * kWord;

constexpr int kSpans = 144;
struct Table {
  DigestSpan spans[kSpans];
  std::int32_t starts[kSpans];  // first chunk of each
  std::int32_t count;
  std::int32_t chunks;
};
static_assert(sizeof(Table) <= 4080, "kernel parameters hold 4 KiB with the address of the sums");

/// Index of the last start that is not above `chunk`.
__device__ __forceinline__ int span_of(const Table& table, std::int32_t chunk) {
  int low = 0;
  for (int high = table.count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (table.starts[middle] <= chunk ? low : high) = middle;
  }
  return low;
}

/// A word from memory of any alignment, of which `bytes` are there.
__device__ __forceinline__ std::uint64_t load_bytes(const unsigned char* data, std::int64_t bytes) {
  std::uint64_t word = 0;
  for (int i = 0; i < kWord && i < bytes; ++i) {
    word |= static_cast<std::uint64_t>(data[i]) << (8 * i);
  }
  return word;
}

__device__ __forceinline__ std::uint64_t join(unsigned int low, unsigned int high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}

__device__ __forceinline__ std::uint64_t pair_value(const uint4& pair, std::uint64_t key) {
  return mix(join(pair.x, pair.y) + key) + mix(join(pair.z, pair.w) + key + kKeyStep);
}

__device__ __forceinline__ bool is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(uint4) == 0;
}

/// This thread's share of a whole, aligned chunk that starts at word `first` of its span: all loads are under way
/// before the first is used.
__device__ __forceinline__ std::uint64_t share_of_whole_chunk(const unsigned char* data, std::uint64_t first) {
  constexpr int kPairs = kDigestWords / 2 / kThreads;
  const auto* vectors = reinterpret_cast<const uint4*>(data) + threadIdx.x;
  uint4 pairs[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    pairs[i] = __ldcs(vectors + i * kThreads);
  }
  std::uint64_t key = word_key(first + 2 * threadIdx.x);
  std::uint64_t sum = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    sum += pair_value(pairs[i], key);
    key += 2 * kThreads * kKeyStep;
  }
  return sum;
}

/// The same for a chunk of any length and alignment.
__device__ __forceinline__ std::uint64_t share_of_chunk(const unsigned char* data, std::uint64_t first,
                                                        std::int64_t bytes) {
  std::uint64_t sum = 0;
  std::int64_t done = 0;
  if (is_aligned(data)) {
    const std::int64_t pairs = bytes / static_cast<std::int64_t>(sizeof(uint4));
    for (std::int64_t i = threadIdx.x; i < pairs; i += kThreads) {
      sum += pair_value(reinterpret_cast<const uint4*>(data)[i], word_key(first + static_cast<std::uint64_t>(2 * i)));
    }
    done = 2 * pairs;
  }
  for (std::int64_t i = done + threadIdx.x; i * kWord < bytes; i += kThreads) {
    sum += word_value(load_bytes(data + i * kWord, bytes - i * kWord), first + static_cast<std::uint64_t>(i));
  }
  return sum;
}

/// The sum over the block's threads, on thread 0.
__device__ __forceinline__ std::uint64_t sum_of_block(std::uint64_t value) {
  __shared__ std::uint64_t warps[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) {
    value += __shfl_down_sync(0xffffffffU, value, step);
  }
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = value;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kThreads / 32; ++warp) {
      value += warps[warp];
    }
  }
  __syncthreads();
  return value;
}

/// Adds what the block's threads found in a span to its sum; -1 is no span. A block goes from span to span in order, so
/// that it does this once for each.
__device__ __forceinline__ void deliver(const Table& table, int which, std::uint64_t share, std::uint64_t* sums) {
  if (which < 0) {
    return;
  }
  const auto sum = sum_of_block(share);
  if (threadIdx.x == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sums + table.spans[which].sum),
              static_cast<unsigned long long>(sum));
  }
}

__global__ void __launch_bounds__(kThreads) digest_kernel(const __grid_constant__ Table table, std::uint64_t* sums) {
  int current = -1;
  std::uint64_t sum = 0;
  for (auto chunk = static_cast<std::int32_t>(blockIdx.x); chunk < table.chunks;
       chunk += static_cast<std::int32_t>(gridDim.x)) {
    const int which = span_of(table, chunk);
    const DigestSpan& span = table.spans[which];
    if (which != current) {
      deliver(table, current, sum, sums);
      current = which;
      sum = 0;
    }
    const std::int64_t begin = (chunk - table.starts[which]) * kChunk;
    const auto* data = static_cast<const unsigned char*>(span.data) + begin;
    const auto first = static_cast<std::uint64_t>(begin / kWord);
    const auto bytes = min(kChunk, span.bytes - begin);
    const bool whole = bytes == kChunk && is_aligned(data);
    sum += whole ? share_of_whole_chunk(data, first) : share_of_chunk(data, first, bytes);
    sum += begin == 0 && threadIdx.x == 0 ? mix(static_cast<std::uint64_t>(span.bytes)) : 0;
  }
  deliver(table, current, sum, sums);
}

}  // namespace

void launch_digests(const std::vector<DigestSpan>& spans, int multiprocessors, std::uint64_t* sums,
                    cudaStream_t stream) {
  Table table;
  for (std::size_t next = 0; next < spans.size();) {
    std::int64_t chunks = 0;
    for (table.count = 0; table.count < kSpans && next < spans.size(); ++table.count, ++next) {
      table.spans[table.count] = spans[next];
      table.starts[table.count] = static_cast<std::int32_t>(chunks);
      chunks += (spans[next].bytes + kChunk - 1) / kChunk;
    }
    table.chunks = static_cast<std::int32_t>(chunks);
    if (chunks > 0) {
      const int blocks = std::min(table.chunks, multiprocessors * kBlocksPerMultiprocessor);
      digest_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(table, sums);
    }
  }
}

}  // namespace lockstep::core
