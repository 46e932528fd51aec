// SPDX-License-Identifier: Apache-2.0
#include "support/arguments.h"

#include <map>
#include <string>

namespace examples {

using lockstep::amp::OptLevel;

void add_opt_level(CLI::App& app, OptLevel& level) {
  static const std::map<std::string, OptLevel> kLevels = {
      {"O0", OptLevel::O0}, {"O1", OptLevel::O1}, {"O2", OptLevel::O2}, {"O3", OptLevel::O3}};
  app.add_option("--opt-level", level, "O0: fp32, O1: autocast, O2: 16-bit weights with fp32 masters, O3: all 16-bit")
      ->transform(CLI::Transformer(kLevels))
      ->default_str(lockstep::amp::to_string(level));
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
}

}  // namespace examples
