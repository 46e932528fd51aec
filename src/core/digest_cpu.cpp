// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/digest_pass.h"
#include "core/mix.h"
#include "core/wide.h"

namespace lockstep::core {
namespace {

constexpr std::int64_t kGrain = 16;  // chunks: 512 KiB, well above the cost of waking a thread
constexpr std::int64_t kWord = 8;
constexpr std::int64_t kChunk = kDigestWords * kWord;

std::uint64_t whole_words(const std::byte* data, std::uint64_t first, std::int64_t count) {
  std::uint64_t sum = 0;
  const std::uint64_t key = word_key(first);
  wide([&]() __attribute__((always_inline)) {
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + i * kWord, kWord);
      sum += mix(word + key + static_cast<std::uint64_t>(i) * kKeyStep);
    }
  });
  return sum;
}

std::uint64_t value_of_chunk(const DigestSpan& span, std::int64_t begin) {
  const auto* data = static_cast<const std::byte*>(span.data) + begin;
  const auto bytes = std::min(kChunk, span.bytes - begin);
  const auto first = static_cast<std::uint64_t>(begin / kWord);
  std::uint64_t sum = whole_words(data, first, bytes / kWord);
  if (const auto tail = bytes % kWord; tail != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + bytes - tail, static_cast<std::size_t>(tail));
    sum += word_value(word, first + static_cast<std::uint64_t>(bytes / kWord));
  }
  return begin == 0 ? sum + mix(static_cast<std::uint64_t>(span.bytes)) : sum;
}

}  // namespace

void add_digests_on_cpu(const std::vector<DigestSpan>& spans, std::uint64_t* sums) {
  std::vector<std::int64_t> starts{0};  // first chunk of each span
  for (const auto& span : spans) {
    starts.push_back(starts.back() + (span.bytes + kChunk - 1) / kChunk);
  }
  at::parallel_for(0, starts.back(), kGrain, [&](std::int64_t chunk, std::int64_t end) {
    auto i = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), chunk) - starts.begin() - 1);
    for (; chunk < end; ++i) {
      std::uint64_t sum = 0;
      const auto stop = std::min(end, starts[i + 1]);
      for (; chunk < stop; ++chunk) {
        sum += value_of_chunk(spans[i], (chunk - starts[i]) * kChunk);
      }
      std::atomic_ref(sums[spans[i].sum]).fetch_add(sum, std::memory_order_relaxed);
    }
  });
}

}  // namespace lockstep::core
