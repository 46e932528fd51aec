// SPDX-License-Identifier: Apache-2.0
#include "core/capturing.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace lockstep::core {

bool capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

}  // namespace lockstep::core
