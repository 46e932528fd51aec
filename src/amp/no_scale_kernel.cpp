// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA update of a loss scale in a build without CUDA.
#include "amp/scale_law.h"
#include "core/check.h"

namespace lockstep::amp {

void move_scale_on_cuda(int device, const ScaleCells&, const float*, const ScaleLaw&) {
  core::fail("amp.update",
             {.what = core::str("the loss scale lies on CUDA device ", device, ", and this build has no CUDA"),
              .advice = "build with -DLOCKSTEP_CUDA=ON"});
}

}  // namespace lockstep::amp
