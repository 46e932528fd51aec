// SPDX-License-Identifier: Apache-2.0
// One thread: what counts here is that an update is one launch, not six.
#include "amp/scale_kernel.h"

namespace lockstep::amp {
namespace {

__global__ void move_scale_kernel(ScaleCells cells, const float* found_inf, ScaleLaw law) {
  move_scale(cells, *found_inf, law);
}

}  // namespace

void launch_move_scale(const ScaleCells& cells, const float* found_inf, const ScaleLaw& law, cudaStream_t stream) {
  move_scale_kernel<<<1, 1, 0, stream>>>(cells, found_inf, law);
}

}  // namespace lockstep::amp
