// SPDX-License-Identifier: Apache-2.0
#include "comm/error_file.h"

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/env.h"

namespace lockstep::comm {

std::string error_file_text(const std::string& text, long seconds) {
  const nlohmann::json extra = {{"py_callstack", text}, {"timestamp", std::to_string(seconds)}};
  const nlohmann::json file = {{"message", {{"message", text}, {"extraInfo", extra}}}};
  // Exceptions may quote bytes that are no UTF-8.
  return file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void write_error_file(const std::string& text) {
  if (const auto path = core::env("TORCHELASTIC_ERROR_FILE")) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    std::ofstream(*path) << error_file_text(text, std::chrono::duration_cast<std::chrono::seconds>(now).count());
  }
}

}  // namespace lockstep::comm
