// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::launcher {

/// The program cannot be started at all. `exit_code()` is what shells use: 127 not found, 126 not executable.
class ProgramError : public InputError {
 public:
  ProgramError(int exit_code, const std::string& text) : InputError(text), exit_code_(exit_code) {}

  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// The file that `name` stands for: itself where it holds a slash, else the first executable of that name in the
/// folders of `search_path` (colons between). Throws ProgramError.
std::string find_program(const std::string& name, std::string_view search_path);

/// Throws the ProgramError for an exec that failed with `error` (an errno value).
[[noreturn]] void fail_exec(const std::string& name, int error);

}  // namespace lockstep::launcher
