// SPDX-License-Identifier: Apache-2.0
// How C++ that knows torch launches kernels that do not. Only sources of a CUDA build include this.
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace lockstep::core {

/// Calls `launch(stream)` with the device's current stream, and throws c10::Error if a launch failed.
template <class Launch>
void launch_on(c10::DeviceIndex device, Launch&& launch) {
  const c10::cuda::CUDAGuard guard(device);
  launch(c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

inline int multiprocessors(c10::DeviceIndex device) {
  int count = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace lockstep::core
