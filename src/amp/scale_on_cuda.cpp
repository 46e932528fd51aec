// SPDX-License-Identifier: Apache-2.0
// The update of a loss scale with torch's device and stream.
#include "amp/scale_kernel.h"
#include "core/on_cuda.h"

namespace lockstep::amp {

void move_scale_on_cuda(int device, const ScaleCells& cells, const float* found_inf, const ScaleLaw& law) {
  core::launch_on(static_cast<c10::DeviceIndex>(device),
                  [&](cudaStream_t stream) { launch_move_scale(cells, found_inf, law, stream); });
}

}  // namespace lockstep::amp
