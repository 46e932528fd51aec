// SPDX-License-Identifier: Apache-2.0
#include "lockstep/doctor/facts.h"

namespace lockstep::doctor {

Findings cuda_facts() {
  return {{Grade::note, "this build has no CUDA: it trains on the CPU (build with -DLOCKSTEP_CUDA=ON for GPUs)"}};
}

int cuda_devices() {
  return 0;
}

}  // namespace lockstep::doctor
