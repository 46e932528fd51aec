// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// `lockstep run` with these arguments; returns its exit code. Throws InputError for what is wrong with them, and
/// ProgramError where the program cannot be started.
int run(const std::vector<std::string>& arguments);

}  // namespace lockstep::launcher
