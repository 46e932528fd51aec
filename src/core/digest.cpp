// SPDX-License-Identifier: Apache-2.0
#include "core/digest.h"

#include <ATen/ops/resolve_conj.h>

#include <cstdio>
#include <cstring>

namespace lockstep::core {

std::uint64_t digest_bytes(std::span<const std::byte> bytes) {
  const std::size_t words = bytes.size() / 8;
  std::uint64_t sum = mix(bytes.size());
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * 8, 8);
    sum += word_value(word, i);
  }
  if (const std::size_t tail = bytes.size() % 8; tail != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + words * 8, tail);
    sum += word_value(word, words);
  }
  return sum;
}

std::uint64_t digest(const at::Tensor& tensor) {
  const auto plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  return digest_bytes({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
}

std::string digest_text(std::uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
  return text;
}

}  // namespace lockstep::core
