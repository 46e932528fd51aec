// SPDX-License-Identifier: Apache-2.0
#include "core/capturing.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace lockstep::core {

bool capturing() {
  // Without a device there is no context to ask.
  return c10::cuda::device_count() > 0 &&
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

}  // namespace lockstep::core
