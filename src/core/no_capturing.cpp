// SPDX-License-Identifier: Apache-2.0
// A build without CUDA captures nothing.
#include "core/capturing.h"

namespace lockstep::core {

bool capturing() {
  return false;
}

}  // namespace lockstep::core
