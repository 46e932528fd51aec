// SPDX-License-Identifier: Apache-2.0
#include "core/check.h"

namespace lockstep::core {

std::string message(std::string_view where, const Problem& problem) {
  std::string text = str("[", where, "] ", problem.what);
  if (!problem.got.empty()) {
    text += str("; got ", problem.got);
  }
  if (!problem.expected.empty()) {
    text += str(problem.got.empty() ? "; expected " : ", expected ", problem.expected);
  }
  if (!problem.advice.empty()) {
    text += str("; ", problem.advice);
  }
  return text;
}

void fail(std::string_view where, const Problem& problem) {
  throw InputError(message(where, problem));
}

}  // namespace lockstep::core
