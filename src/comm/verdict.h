// SPDX-License-Identifier: Apache-2.0
// Compares what two ranks of a group are in. Pure: no store, no clock, no thread.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "comm/failure.h"
#include "comm/pulse.h"

namespace lockstep::comm {

/// A group's pulse and the rank (in the whole world) that it comes from.
struct Witness {
  int rank = 0;
  GroupPulse group = {};
};

/// Words if the two can never meet: `mine` waits in a collective that `theirs` left without calling, or in whose
/// place it called another one.
std::optional<Words> compare(const Witness& mine, const Witness& theirs);

/// For a collective that took too long: who has not called it.
Words timed_out(const Witness& mine, const std::vector<Witness>& others, std::chrono::milliseconds limit);

}  // namespace lockstep::comm
