// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "lockstep/export.h"

namespace lockstep {

/// Base of everything Lockstep throws. The text reads `[module.operation] what; got V, expected W; do this`.
class LOCKSTEP_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A call that can be mended by the caller: wrong argument, wrong order, wrong configuration.
/// Nothing has been changed when it is thrown.
class LOCKSTEP_API InputError : public Error {
 public:
  using Error::Error;
};

/// The world can no longer be used: a rank failed, left, or called another collective. Every rank throws it with the
/// same text, the words of the rank where the fault was first seen.
class LOCKSTEP_API WorldError : public Error {
 public:
  WorldError(int origin, const std::string& text) : Error(text), origin_(origin) {}

  /// Rank whose fault this is, or -1 where it is not known.
  int origin() const { return origin_; }

 private:
  int origin_;
};

}  // namespace lockstep
