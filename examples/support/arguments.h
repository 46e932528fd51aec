// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/amp/opt_level.h>

#include <CLI/CLI.hpp>
#include <optional>

namespace examples {

/// Adds `--opt-level O0|O1|O2|O3`, which sets `level`.
void add_opt_level(CLI::App& app, lockstep::amp::OptLevel& level);

/// Reads the command line. Returns the exit code to end with where there is nothing to run: after `--help` (0), and for
/// arguments that make no sense, once the reason has been printed.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

}  // namespace examples
