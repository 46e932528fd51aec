// SPDX-License-Identifier: Apache-2.0
#include "core/exception_text.h"

#include <c10/util/Exception.h>

namespace lockstep::core {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& known) {
    return known.what_without_backtrace();
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace lockstep::core
