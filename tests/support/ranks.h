// SPDX-License-Identifier: Apache-2.0
// Ranks as threads, for tests: short timeouts, and the error of a run as a value.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "lockstep/comm/launch.h"
#include "lockstep/comm/world.h"

namespace lockstep::test {

/// On the CPU, with timeouts that let a fault end in seconds and a slow machine pass.
inline WorldOptions quick_options() {
  WorldOptions options;
  options.device = c10::Device(c10::kCPU);
  options.timeout = std::chrono::seconds(30);
  options.heartbeat_timeout = std::chrono::seconds(10);
  options.mismatch_after = std::chrono::milliseconds(500);
  return options;
}

/// run_ranks with quick_options.
inline void run(int size, const std::function<void(World&)>& fn) {
  run_ranks(size, fn, quick_options());
}

/// The error that ends the run, if one does.
inline std::optional<WorldError> failure_of(int size, const std::function<void(World&)>& fn,
                                            const WorldOptions& options = quick_options()) {
  try {
    run_ranks(size, fn, options);
  } catch (const WorldError& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace lockstep::test
