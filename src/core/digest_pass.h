// SPDX-License-Identifier: Apache-2.0
// One pass over memory that adds digests to sums, in plain numbers and addresses, so that the CUDA source needs no
// torch header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::core {

/// Bytes in a row whose digest is added to one sum.
struct DigestSpan {
  const void* data = nullptr;
  std::int64_t bytes = 0;
  std::int64_t sum = 0;  // index among the sums
};

/// Words that one thread, or one block of threads, takes at a time.
inline constexpr std::int64_t kDigestWords = 4096;

/// On the host, on ATen's intra-op threads.
void add_digests_on_cpu(const std::vector<DigestSpan>& spans, std::uint64_t* sums);

/// On CUDA device `device`, where `sums` lies too, in the order of its current stream, without waiting. A build without
/// CUDA throws InputError.
void add_digests_on_cuda(int device, const std::vector<DigestSpan>& spans, std::uint64_t* sums);

}  // namespace lockstep::core
