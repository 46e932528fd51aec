// SPDX-License-Identifier: Apache-2.0
#include "core/env.h"

#include <charconv>
#include <cstdlib>

#include "core/check.h"

namespace lockstep::core {

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return value;
}

std::optional<long> env_integer(const char* name, const char* where) {
  const auto text = env(name);
  if (!text) {
    return std::nullopt;
  }
  long value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, code] = std::from_chars(text->data(), end, value);
  check(code == std::errc() && stop == end, where, [&] {
    return Problem{str("environment variable ", name, " is not a whole number"), str("'", *text, "'")};
  });
  return value;
}

void env_default(const char* name, const char* value) {
  ::setenv(name, value, /*overwrite=*/0);
}

}  // namespace lockstep::core
