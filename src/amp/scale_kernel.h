// SPDX-License-Identifier: Apache-2.0
// What lies between C++ that knows torch and the CUDA source that does not.
#pragma once

#include <cuda_runtime_api.h>

#include "amp/scale_law.h"

namespace lockstep::amp {

void launch_move_scale(const ScaleCells& cells, const float* found_inf, const ScaleLaw& law, cudaStream_t stream);

}  // namespace lockstep::amp
