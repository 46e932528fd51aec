// SPDX-License-Identifier: Apache-2.0
// The CUDA digest with torch's device and stream.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/digest_kernel.h"

namespace lockstep::core {

void add_digests_on_cuda(int device, const std::vector<DigestSpan>& spans, std::uint64_t* sums) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  int multiprocessors = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  launch_digests(spans, multiprocessors, sums, c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace lockstep::core
