// SPDX-License-Identifier: Apache-2.0
#include "comm/backend.h"
#include "core/check.h"

namespace lockstep::comm {

std::unique_ptr<Backend> make_nccl_backend(const GroupPlan&) {
  core::fail("world", {"this build of Lockstep has no NCCL", "backend Nccl", "Gloo or Auto",
                       "build the cuda preset to use NCCL"});
}

int nccl_device_count() {
  return 0;
}

}  // namespace lockstep::comm
