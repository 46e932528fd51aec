// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/comm/world.h"
#include "lockstep/export.h"

namespace lockstep {

/// Runs `fn` on `size` ranks, each a thread of this process, over an in-memory store, and returns when all have ended.
/// `defaults` gives timeouts, device and backend; ranks on CUDA get devices 0, 1, ... in turn.
/// The first exception ends all ranks and is rethrown as WorldError: `[rank R] ` and its text.
///
/// Ranks as threads share the process's default random generators: give each rank its own generator.
LOCKSTEP_API void run_ranks(int size, const std::function<void(World&)>& fn, const WorldOptions& defaults = {});

/// Runs a rank's whole program, `fn`, and returns the process's exit code: 0, or 1 after an exception, whose text goes
/// to stderr, to the other ranks of `world`, and to the file TORCHELASTIC_ERROR_FILE names where a launcher set it.
LOCKSTEP_API int run_main(World& world, const std::function<void()>& fn);

/// The same for the world that the environment describes (see World::from_environment), whose making may fail too:
///
///     int main() { return lockstep::run_main(train); }
LOCKSTEP_API int run_main(const std::function<void(World&)>& fn, const WorldOptions& defaults = {});

}  // namespace lockstep
