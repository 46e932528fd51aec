// SPDX-License-Identifier: Apache-2.0
// From the environment of a rank, whoever launched it, to options. docs/environment.md lists the variables.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/comm/world.h"

namespace lockstep::comm {

/// Value of a variable, or nothing where it is unset or empty.
using Lookup = std::function<std::optional<std::string>(const char*)>;

/// What the environment says; `defaults` for the rest. Throws InputError that lists the variables found where they are
/// half set or contradict each other.
WorldOptions options_from(const Lookup& lookup, WorldOptions defaults);

}  // namespace lockstep::comm
