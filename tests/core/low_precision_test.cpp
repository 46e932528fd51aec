// SPDX-License-Identifier: Apache-2.0
#include "core/low_precision.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace lockstep::core {
namespace {

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

template <class Ours, class Theirs>
void every_value_widens_as_in_c10() {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const float theirs = Theirs(low, Theirs::from_bits());
    const float ours = Ours::widen(low);
    ASSERT_TRUE(bits(ours) == bits(theirs) || (std::isnan(ours) && std::isnan(theirs))) << i;
  }
}

template <class Ours, class Theirs>
void narrows_as_in_c10(float value) {
  const auto theirs = static_cast<Theirs>(value).x;
  const auto ours = Ours::narrow(value);
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(Ours::widen(ours)));
    return;
  }
  ASSERT_EQ(ours, theirs) << value << " " << bits(value);
}

/// Every value of the narrow type, the fp32 values beside it and beside the ties between it and the next.
template <class Ours, class Theirs>
void every_tie_narrows_as_in_c10() {
  for (std::uint32_t i = 0; i < 0xffff; ++i) {
    const float here = Ours::widen(static_cast<std::uint16_t>(i));
    const float next = Ours::widen(static_cast<std::uint16_t>(i + 1));
    for (const float around : {here, here + (next - here) / 2}) {
      for (const int step : {-1, 0, 1}) {
        narrows_as_in_c10<Ours, Theirs>(std::bit_cast<float>(bits(around) + static_cast<std::uint32_t>(step)));
      }
    }
  }
}

template <class Ours, class Theirs>
void any_value_narrows_as_in_c10() {
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    narrows_as_in_c10<Ours, Theirs>(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
}

TEST(LowPrecision, fp16_equals_c10) {
  every_value_widens_as_in_c10<F16, c10::Half>();
  every_tie_narrows_as_in_c10<F16, c10::Half>();
  any_value_narrows_as_in_c10<F16, c10::Half>();
}

TEST(LowPrecision, bf16_equals_c10) {
  every_value_widens_as_in_c10<BF16, c10::BFloat16>();
  every_tie_narrows_as_in_c10<BF16, c10::BFloat16>();
  any_value_narrows_as_in_c10<BF16, c10::BFloat16>();
}

}  // namespace
}  // namespace lockstep::core
