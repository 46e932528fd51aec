// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA digest in a build without CUDA.
#include "core/check.h"
#include "core/digest_pass.h"

namespace lockstep::core {

void add_digests_on_cuda(int device, const std::vector<DigestSpan>&, std::uint64_t*) {
  fail("core.digest", {.what = str("tensors lie on CUDA device ", device, ", and this build has no CUDA"),
                       .advice = "build with -DLOCKSTEP_CUDA=ON"});
}

}  // namespace lockstep::core
