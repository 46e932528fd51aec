// SPDX-License-Identifier: Apache-2.0
// The CUDA digest with torch's device and stream.
#include "core/digest_kernel.h"
#include "core/on_cuda.h"

namespace lockstep::core {

void add_digests_on_cuda(int device, const std::vector<DigestSpan>& spans, std::uint64_t* sums) {
  const auto here = static_cast<c10::DeviceIndex>(device);
  launch_on(here, [&](cudaStream_t stream) { launch_digests(spans, multiprocessors(here), sums, stream); });
}

}  // namespace lockstep::core
