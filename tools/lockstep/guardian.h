// SPDX-License-Identifier: Apache-2.0
// Two processes make a launcher. The one the user started is the guardian: it passes signals on and waits. Its child,
// the supervisor, starts the ranks and does all the rest, in a session of its own. Whichever of the two is killed, the
// other notices at once and ends everything that ranks have started, so no orphan can survive a `kill -9`.
#pragma once

#include <functional>

#include "lockstep/signals.h"

namespace lockstep::launcher {

/// Runs `supervise(lifeline)` in the child and returns its result, or 128 + signal where it was killed. The descriptor
/// `lifeline` reads end-of-file once the guardian is gone. Exceptions of `supervise` are printed, and give 1.
int run_guarded(const SignalGate& gate, const std::function<int(int lifeline)>& supervise);

}  // namespace lockstep::launcher
