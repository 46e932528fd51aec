// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

namespace examples {

/// What became of an example's run.
struct Launched {
  int exit_code = -1;
  /// Everything that its ranks and the launcher printed.
  std::string output;
  /// The pairs of its RESULT line.
  std::map<std::string, std::string> result;

  double number(const std::string& key) const { return std::stod(result.at(key)); }
};

/// `lockstep run -n RANKS command`, `command` being an example of this build and its arguments.
Launched launch(int ranks, const std::string& command);

}  // namespace examples
