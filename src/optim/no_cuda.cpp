// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA passes in a build without CUDA.
#include "core/check.h"
#include "optim/norm.h"
#include "optim/pass.h"

namespace lockstep::optim {
namespace {

[[noreturn]] void refuse(const char* where, int device) {
  core::fail(where, {.what = core::str("tensors lie on CUDA device ", device, ", and this build has no CUDA"),
                     .advice = "build with -DLOCKSTEP_CUDA=ON"});
}

}  // namespace

void run_on_cuda(int device, const std::vector<Tick>&, const std::vector<Pass>&) {
  refuse("optim.step", device);
}

void power_on_cuda(int device, const std::vector<GradSpan>&, Norm, double*, const ClipTarget*) {
  refuse("optim.clip_grad", device);
}

void settle_on_cuda(int device, const double*, Norm, const ClipTarget&) {
  refuse("optim.clip_grad", device);
}

void scale_on_cuda(int device, const std::vector<GradSpan>&, const float*) {
  refuse("optim.clip_grad", device);
}

}  // namespace lockstep::optim
