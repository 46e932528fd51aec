// SPDX-License-Identifier: Apache-2.0
// Faults for tests.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

namespace lockstep::test {

/// Flips one bit of element `flat` (in memory order) of a tensor on the CPU, behind everybody's back.
inline void flip_bit(const at::Tensor& tensor, std::int64_t flat, std::int64_t bit) {
  auto* bytes = static_cast<unsigned char*>(tensor.storage().mutable_data()) +
                (tensor.storage_offset() + flat) * static_cast<std::int64_t>(tensor.element_size());
  bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
}

inline bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lockstep::test
