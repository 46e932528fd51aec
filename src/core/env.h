// SPDX-License-Identifier: Apache-2.0
// The environment, read in this one place. Everybody else is handed values.
#pragma once

#include <optional>
#include <string>

namespace lockstep::core {

/// Value of the variable, or nothing where it is unset or empty.
std::optional<std::string> env(const char* name);

/// The variable as a whole number. Throws InputError (`where` names the caller) where it is set to something else.
std::optional<long> env_integer(const char* name, const char* where);

/// Sets the variable unless it is set already. Not safe beside threads that read the environment.
void env_default(const char* name, const char* value);

}  // namespace lockstep::core
