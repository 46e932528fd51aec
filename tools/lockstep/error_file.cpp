// SPDX-License-Identifier: Apache-2.0
#include "lockstep/error_file.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace lockstep::launcher {
namespace {

using Json = nlohmann::json;

// Torchrun writes the time as a string, others as a number.
std::optional<double> seconds(const Json& holder) {
  const auto found = holder.find("timestamp");
  if (found == holder.end()) {
    return std::nullopt;
  }
  if (found->is_number()) {
    return found->get<double>();
  }
  const Json number = found->is_string() ? Json::parse(found->get<std::string>(), nullptr, false) : Json();
  return number.is_number() ? std::optional(number.get<double>()) : std::nullopt;
}

std::optional<ErrorReport> from_json(const Json& root) {
  const auto message = root.find("message");
  if (message == root.end()) {
    return std::nullopt;
  }
  if (message->is_string()) {
    return ErrorReport{message->get<std::string>(), seconds(root)};
  }
  const auto inner = message->is_object() ? message->find("message") : message->end();
  if (inner == message->end() || !inner->is_string()) {
    return std::nullopt;
  }
  const auto extra = message->find("extraInfo");
  return ErrorReport{inner->get<std::string>(),
                     extra != message->end() && extra->is_object() ? seconds(*extra) : std::nullopt};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  const auto first = text.find_first_not_of(blank);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(blank) - first + 1);
}

}  // namespace

std::optional<ErrorReport> parse_error_report(std::string_view content) {
  const auto text = trimmed(content);
  if (text.empty()) {
    return std::nullopt;
  }
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_object()) {
    if (auto report = from_json(root)) {
      return report;
    }
  }
  return ErrorReport{std::string(text)};
}

std::optional<ErrorReport> read_error_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return parse_error_report(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace lockstep::launcher
