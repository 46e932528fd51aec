// SPDX-License-Identifier: Apache-2.0
// A 64-bit fingerprint of raw bits that depends on every byte and on its place. Equal digests of two replicas mean, for
// all practical purposes, equal bits; it is no defence against an adversary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

namespace lockstep::core {

/// The finaliser of MurmurHash3 (Appleby): every input bit changes each output bit with a chance of about one half.
constexpr std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return x;
}

/// Value of the 8-byte word `word` (little endian, the last one padded with zero) at place `index`. A digest is the sum
/// of its words' values modulo 2^64, so it can be computed in any order and by any number of threads.
constexpr std::uint64_t word_value(std::uint64_t word, std::uint64_t index) {
  return mix(word + (index + 1) * 0x9e3779b97f4a7c15ULL);
}

/// Appends `next` to an ordered digest.
constexpr std::uint64_t chain(std::uint64_t digest, std::uint64_t next) {
  return mix(digest * 31 + next);
}

std::uint64_t digest_bytes(std::span<const std::byte> bytes);

/// Digest of the elements in logical (row-major) order, whatever the strides; dtype and sizes are not part of it.
/// Any device: the bytes of a CUDA tensor are read on the host.
std::uint64_t digest(const at::Tensor& tensor);

/// Sixteen hexadecimal digits.
std::string digest_text(std::uint64_t digest);

}  // namespace lockstep::core
