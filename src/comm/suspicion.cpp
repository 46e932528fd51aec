// SPDX-License-Identifier: Apache-2.0
#include "comm/suspicion.h"

#include "comm/verdict.h"
#include "core/check.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

namespace {

// How long others may take to say it better.
std::chrono::milliseconds patience(bool has_launcher) {
  return has_launcher ? 1000ms : 60ms;
}

Words process_ended(int rank, const PeerProcess& process) {
  return {rank, core::str("[world] rank ", rank, " is gone: its process (", process.pid, ") has ended")};
}

}  // namespace

void Suspicion::look_at_neighbour() {
  const int neighbour = peers_.neighbour();
  const auto processes = watch_.peers();
  const bool ended = processes[static_cast<std::size_t>(neighbour)].has_ended() && !peers_.pulse(neighbour).left;
  if (ended && !neighbour_ended_) {
    neighbour_ended_ = Clock::now();
  }
}

std::optional<Words> Suspicion::judge(bool has_launcher) {
  if (auto words = judge_neighbour(has_launcher)) {
    return words;
  }
  const auto loss = watch_.loss();
  return loss ? judge_loss(*loss, has_launcher) : std::nullopt;
}

std::optional<Words> Suspicion::judge_neighbour(bool has_launcher) {
  const int neighbour = peers_.neighbour();
  if (neighbour_ended_ && Clock::now() - *neighbour_ended_ > patience(has_launcher)) {
    return process_ended(neighbour, watch_.peers()[static_cast<std::size_t>(neighbour)]);
  }
  const auto limit = watch_.settings().heartbeat_timeout;
  if (!peers_.pulse(neighbour).left && peers_.silent_for(neighbour) > limit) {
    return Words{neighbour, core::str("[world] rank ", neighbour, " has sent no heartbeat for ",
                                      std::chrono::duration<double>(limit).count(),
                                      " s: it is stopped, or its machine or network is gone")};
  }
  return std::nullopt;
}

std::optional<Words> Suspicion::judge_loss(const Loss& loss, bool has_launcher) {
  peers_.read(peers_.others());
  const auto age = Clock::now() - loss.since;
  if (auto words = left_early(loss)) {
    return words;
  }
  if (age > patience(has_launcher)) {
    if (auto words = ended_process()) {
      return words;
    }
  }
  if (age > 2s) {
    if (auto words = silent_peer()) {
      return words;
    }
  }
  if (age > 3s) {
    return Words{-1, core::str("[world] rank ", watch_.settings().rank, " lost a peer in ", loss.mine.pending_text,
                               ": ", loss.reason)};
  }
  return std::nullopt;
}

std::optional<Words> Suspicion::left_early(const Loss& loss) {
  const Witness mine{watch_.settings().rank, loss.mine};
  for (const int other : peers_.others()) {
    const auto* group = peers_.pulse(other).find(loss.mine.group);
    if (auto words = group != nullptr ? compare(mine, {other, *group}) : std::nullopt) {
      return words;
    }
  }
  return std::nullopt;
}

std::optional<Words> Suspicion::ended_process() {
  const auto processes = watch_.peers();
  for (const int other : peers_.others()) {
    if (!peers_.pulse(other).left && processes[static_cast<std::size_t>(other)].has_ended()) {
      return process_ended(other, processes[static_cast<std::size_t>(other)]);
    }
  }
  return std::nullopt;
}

std::optional<Words> Suspicion::silent_peer() {
  for (const int other : peers_.others()) {
    if (!peers_.pulse(other).left && peers_.silent_for(other) > 1500ms) {
      return Words{other,
                   core::str("[world] rank ", other, " is gone: its connections broke and its heartbeat stopped")};
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::comm
