// SPDX-License-Identifier: Apache-2.0
// What can be read about this machine and this build without running anything.
#pragma once

#include "lockstep/doctor/report.h"

namespace lockstep::doctor {

/// Lockstep and torch: versions built against and loaded.
Findings build_facts();
/// Processors, limits, network interfaces.
Findings machine_facts();
/// Driver, runtime, NCCL, devices and their links; one line that says so in a build without CUDA.
Findings cuda_facts();

/// CUDA devices that this build can use.
int cuda_devices();

}  // namespace lockstep::doctor
