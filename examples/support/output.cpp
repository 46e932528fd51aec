// SPDX-License-Identifier: Apache-2.0
#include "support/output.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace examples {

bool all_equal(const std::vector<std::string>& texts) {
  return std::all_of(texts.begin(), texts.end(), [&](const std::string& text) { return text == texts.front(); });
}

void print_by_rank(const std::vector<std::string>& texts) {
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::printf("rank %zu: %s\n", rank, texts[rank].c_str());
  }
  std::fflush(stdout);
}

std::string decimal(double number, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, number);
  return text;
}

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, number);
  return text;
}

}  // namespace examples
