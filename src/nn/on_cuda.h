// SPDX-License-Identifier: Apache-2.0
// One kernel each for what would be many small ones. In a build without CUDA they throw.
#pragma once

#include "nn/shared_statistics.h"

namespace lockstep::nn {

at::Tensor message_on_cuda(const Moments& moments, std::int64_t count);
SharedStatistics merge_on_cuda(const at::Tensor& messages, double eps, const Running& running);

}  // namespace lockstep::nn
