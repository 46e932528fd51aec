// SPDX-License-Identifier: Apache-2.0
// A build without CUDA records nothing.
#include "step/recorder.h"

namespace lockstep::step {

std::unique_ptr<Recorder> make_recorder(c10::Device /*device*/) {
  return nullptr;
}

}  // namespace lockstep::step
