// SPDX-License-Identifier: Apache-2.0
// A few seconds of training on this machine, with ranks as threads of this process.
#pragma once

#include <c10/core/Device.h>

#include "lockstep/doctor/report.h"

namespace lockstep::doctor {

/// `ranks` ranks, on the CPU over Gloo or each on a CUDA device of its own over NCCL: an all-reduce with known sums and
/// its speed, then some steps of mixed precision after which the replicas must be equal, bit for bit. On CUDA the step
/// is captured as well.
Findings self_test(c10::DeviceType type, int ranks);

}  // namespace lockstep::doctor
