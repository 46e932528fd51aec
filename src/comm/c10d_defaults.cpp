// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d_defaults.h"

#include <c10/util/Logging.h>

#include "core/env.h"

namespace lockstep::comm {

void set_c10d_defaults() {
  [[maybe_unused]] static const bool once = [] {
    // The store looks up a name for each connection; where the name server is silent that takes 5 s by default.
    core::env_default("RES_OPTIONS", "timeout:1 attempts:1");
    // The flight recorder's table is shared by all groups of the process and written without a lock (torch 2.11), so
    // ranks that are threads crash in it. It also costs a stack trace for each collective.
    core::env_default("TORCH_FR_BUFFER_SIZE", "0");
    // NCCL's own watchdog would end the process without a word; Lockstep's watcher does its work.
    core::env_default("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0");
    // A broken connection makes c10d print a stack trace before Lockstep's words. C++ programs do not read the
    // variable unless told to.
    core::env_default("TORCH_CPP_LOG_LEVEL", "ERROR");
    c10::initLogging();
    return true;
  }();
}

}  // namespace lockstep::comm
