// SPDX-License-Identifier: Apache-2.0
// Commands that need torch are programs of their own beside this one, so that `lockstep run` starts without it.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// Becomes the program `lockstep-<command>` in the folder of this one; does not return. Throws ProgramError where there
/// is no such program.
[[noreturn]] void exec_companion(const std::string& command, const std::vector<std::string>& arguments);

/// Commands that can be given here, the built-in one first.
std::vector<std::string> known_commands();

}  // namespace lockstep::launcher
