// SPDX-License-Identifier: Apache-2.0
// The processes below this one. A process that called adopt_orphans() also becomes the parent of every descendant whose
// own parent dies, so nothing that a rank starts can slip away, whatever group or session it moves to.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

namespace lockstep::launcher {

/// Makes this process the one that orphans below it fall to.
void adopt_orphans();

/// Process ids of this process's children, zombies included.
std::vector<pid_t> children();

/// Sends `signal` to the process group of every child. A child in the caller's own group is signalled alone.
void signal_children(int signal);

/// Kills everything below this process and collects it. Returns false where something is left after `limit`
/// (a process that the kernel cannot end).
bool kill_descendants(std::chrono::milliseconds limit);

}  // namespace lockstep::launcher
