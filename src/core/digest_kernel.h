// SPDX-License-Identifier: Apache-2.0
// Launch of the CUDA digest: what lies between C++ that knows torch and the CUDA source that does not.
#pragma once

#include <cuda_runtime_api.h>

#include "core/digest_pass.h"

namespace lockstep::core {

void launch_digests(const std::vector<DigestSpan>& spans, int multiprocessors, std::uint64_t* sums,
                    cudaStream_t stream);

}  // namespace lockstep::core
