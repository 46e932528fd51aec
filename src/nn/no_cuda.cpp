// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA kernels in a build without CUDA.
#include "core/check.h"
#include "nn/on_cuda.h"

namespace lockstep::nn {
namespace {

[[noreturn]] void refuse() {
  core::fail("nn.SyncBatchNorm", {.what = "the input lies on a CUDA device, and this build has no CUDA",
                                  .advice = "build with -DLOCKSTEP_CUDA=ON"});
}

}  // namespace

at::Tensor message_on_cuda(const Moments&, std::int64_t) {
  refuse();
}

SharedStatistics merge_on_cuda(const at::Tensor&, double, const Running&) {
  refuse();
}

}  // namespace lockstep::nn
