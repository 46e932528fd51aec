// SPDX-License-Identifier: Apache-2.0
// How an error text is made. `where` is `module.operation`; the rest follows one pattern, so that a user who has read
// one message can read them all.
#pragma once

#include <c10/util/StringUtil.h>

#include <string>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::core {

/// The variable parts of a message. Empty parts are left out.
struct Problem {
  std::string what;
  std::string got = {};
  std::string expected = {};
  std::string advice = {};
};

/// `[where] what; got V, expected W; advice`
std::string message(std::string_view where, const Problem& problem);

/// Throws InputError with that message.
[[noreturn]] void fail(std::string_view where, const Problem& problem);

/// Throws InputError unless `ok`. The Problem is only built where it fails: `make` returns it.
template <class Make>
void check(bool ok, std::string_view where, Make&& make) {
  if (!ok) [[unlikely]] {
    fail(where, make());
  }
}

using c10::str;

}  // namespace lockstep::core
