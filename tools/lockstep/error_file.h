// SPDX-License-Identifier: Apache-2.0
// The account of its error that a rank may leave in the file TORCHELASTIC_ERROR_FILE names, in torchrun's format:
// {"message": "text"} or {"message": {"message": "text", "extraInfo": {"timestamp": "seconds"}}}.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::launcher {

struct ErrorReport {
  std::string text;
  /// Seconds since 1970, where the rank said when it failed.
  std::optional<double> timestamp = std::nullopt;
};

/// Content that is not of that format counts as text. Nothing where it is blank.
std::optional<ErrorReport> parse_error_report(std::string_view content);

/// Nothing where the file is missing or blank.
std::optional<ErrorReport> read_error_file(const std::string& path);

}  // namespace lockstep::launcher
