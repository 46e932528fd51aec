// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace lockstep::core {

/// What an exception says, for people and other ranks: LibTorch's own errors without their stack trace.
std::string text_of(const std::exception_ptr& error);

}  // namespace lockstep::core
