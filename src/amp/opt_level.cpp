// SPDX-License-Identifier: Apache-2.0
#include "lockstep/amp/opt_level.h"

#include <charconv>
#include <cmath>

#include "core/check.h"

namespace lockstep::amp {
namespace {

using core::check;
using core::Problem;
using core::str;

double checked_scale(double value) {
  check(std::isfinite(value) && value > 0, "amp.LossScale", [&] {
    return Problem{"not a loss scale", str(value), "a positive number, or \"dynamic\""};
  });
  return value;
}

}  // namespace

OptLevel parse_opt_level(std::string_view text) {
  for (const auto level : {OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3}) {
    if (text == to_string(level)) {
      return level;
    }
  }
  core::fail("amp.parse_opt_level", {"unknown opt level", str("'", text, "'"), "O0, O1, O2 or O3",
                                     "in \"O0\", \"O1\", etc., the prefix is the letter O, not the number zero"});
}

std::string to_string(OptLevel level) {
  return "O" + std::to_string(static_cast<int>(level));
}

LossScale::LossScale(double value) : value_(checked_scale(value)) {}

LossScale::LossScale(std::string_view text) {
  if (text == "dynamic") {
    return;
  }
  double value = 0;
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(code == std::errc() && stop == text.data() + text.size(), "amp.LossScale", [&] {
    return Problem{"not a loss scale", str("'", text, "'"), "a positive number, or \"dynamic\""};
  });
  value_ = checked_scale(value);
}

OptLevelProperties properties_of(OptLevel level, at::ScalarType low) {
  switch (level) {
    case OptLevel::O0:
      return {at::kFloat, false, std::nullopt, false, 1.0};
    case OptLevel::O1:
      return {std::nullopt, true, std::nullopt, std::nullopt, "dynamic"};
    case OptLevel::O2:
      return {low, false, true, true, "dynamic"};
    case OptLevel::O3:
      return {low, false, false, false, 1.0};
  }
  core::fail("amp.properties_of", {"unknown opt level", str(static_cast<int>(level)), "O0, O1, O2 or O3"});
}

}  // namespace lockstep::amp
