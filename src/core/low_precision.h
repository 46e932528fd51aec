// SPDX-License-Identifier: Apache-2.0
// fp16 and bf16 as bits, with conversions that the compiler turns into vector code: no branch, no struct, no rounding
// mode. Values equal c10::Half's and c10::BFloat16's.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep::core {

/// IEEE half precision: 1 sign, 5 exponent, 10 fraction bits.
struct F16 {
  using Bits = std::uint16_t;

  [[gnu::always_inline]] static float widen(Bits bits) {
    constexpr std::uint32_t kExponent = 0x7c00u << 13;
    constexpr std::uint32_t kRebias = (127u - 15u) << 23;
    const std::uint32_t magnitude = (bits & 0x7fffu) << 13;
    const std::uint32_t exponent = magnitude & kExponent;
    const std::uint32_t normal = magnitude + kRebias + (exponent == kExponent ? kRebias : 0u);
    // With the smallest normal exponent, a subnormal is off by exactly 2^-14.
    const float subnormal = std::bit_cast<float>(magnitude + kRebias + (1u << 23)) - 0x1p-14f;
    const std::uint32_t value = exponent == 0 ? std::bit_cast<std::uint32_t>(subnormal) : normal;
    return std::bit_cast<float>(value | (bits & 0x8000u) << 16);
  }

  [[gnu::always_inline]] static Bits narrow(float value) {
    constexpr std::uint32_t kInfinity = 0xffu << 23;
    constexpr std::uint32_t kTooLarge = (127u + 16u) << 23;
    constexpr std::uint32_t kNormal = (127u - 14u) << 23;
    constexpr std::uint32_t kMagic = (127u - 15u + 23u - 10u + 1u) << 23;
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = all & 0x7fffffffu;
    const std::uint32_t special = magnitude > kInfinity ? 0x7e00u : 0x7c00u;
    const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding a number whose last bit is worth one fp16 subnormal lets the adder round.
    const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - kMagic;
    const std::uint32_t finite = magnitude < kNormal ? subnormal : normal;
    return static_cast<Bits>((magnitude >= kTooLarge ? special : finite) | (all >> 16 & 0x8000u));
  }
};

/// The upper half of an fp32: 1 sign, 8 exponent, 7 fraction bits.
struct BF16 {
  using Bits = std::uint16_t;

  [[gnu::always_inline]] static float widen(Bits bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  [[gnu::always_inline]] static Bits narrow(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (all + 0x7fffu + (all >> 16 & 1u)) >> 16;
    return static_cast<Bits>((all & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
};

}  // namespace lockstep::core
