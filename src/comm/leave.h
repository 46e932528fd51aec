// SPDX-License-Identifier: Apache-2.0
// Ends things that may hang: their owner waits a moment and then goes on without them.
#pragma once

#include <chrono>
#include <functional>

namespace lockstep::comm {

/// Runs `end` on a thread of its own and waits for it, at most `limit`; what still runs then is left behind, so `end`
/// must own all it uses. True if it ended in time. Never throws.
bool run_or_leave(std::function<void()> end, std::chrono::milliseconds limit) noexcept;

}  // namespace lockstep::comm
