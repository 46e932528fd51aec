// SPDX-License-Identifier: Apache-2.0
// The update of a loss scale with torch's device and stream.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "amp/scale_kernel.h"

namespace lockstep::amp {

void move_scale_on_cuda(int device, const ScaleCells& cells, const float* found_inf, const ScaleLaw& law) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  launch_move_scale(cells, found_inf, law, c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace lockstep::amp
