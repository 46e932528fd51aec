// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a digest, for host and device: no torch type, no memory access.
#pragma once

#include <cstdint>

namespace lockstep::core {

/// Distance of the keys of neighbouring words: 2^64 divided by the golden ratio (Knuth).
inline constexpr std::uint64_t kKeyStep = 0x9e3779b97f4a7c15ULL;

/// The finaliser of MurmurHash3 (Appleby): a bijection in which every input bit changes each output bit with a chance
/// of about one half.
constexpr std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return x;
}

/// Key of the 8-byte word at place `index`.
constexpr std::uint64_t word_key(std::uint64_t index) {
  return (index + 1) * kKeyStep;
}

/// Value of the 8-byte word `word` (little endian, the last one padded with zero) at place `index`. A digest is the sum
/// of its words' values modulo 2^64 and of mix(bytes), so it can be computed in any order and by any number of threads;
/// and since mix is a bijection, a change inside one word always changes it.
constexpr std::uint64_t word_value(std::uint64_t word, std::uint64_t index) {
  return mix(word + word_key(index));
}

/// Appends `next` to an ordered digest.
constexpr std::uint64_t chain(std::uint64_t digest, std::uint64_t next) {
  return mix(digest * 31 + next);
}

}  // namespace lockstep::core
