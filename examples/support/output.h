// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

/// Whether all ranks, whose texts these are, have the same one.
bool all_equal(const std::vector<std::string>& texts);

/// A line `rank R: text` for each.
void print_by_rank(const std::vector<std::string>& texts);

/// `number` with so many digits after the point.
std::string decimal(double number, int digits);

/// Sixteen hexadecimal digits.
std::string hex(std::uint64_t number);

}  // namespace examples
