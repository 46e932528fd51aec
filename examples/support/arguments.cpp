// SPDX-License-Identifier: Apache-2.0
#include "support/arguments.h"

#include <string>

namespace examples {

void add_opt_level(CLI::App& app, lockstep::amp::OptLevel& level) {
  const auto set = [&level](const std::string& text) { level = lockstep::amp::parse_opt_level(text); };
  app.add_option_function<std::string>("--opt-level", set,
                                       "O0: fp32, O1: autocast, O2: 16-bit weights with fp32 masters, O3: all 16-bit")
      ->check(CLI::IsMember({"O0", "O1", "O2", "O3"}))
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
