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

std::string seconds(std::chrono::milliseconds time) {
  return core::str(std::chrono::duration<double>(time).count(), " s");
}

}  // namespace

void Suspicion::look_at_neighbour() {
  const int neighbour = peers_.neighbour();
  peers_.read({neighbour});
  neighbour_silent_ =
      !peers_.pulse(neighbour).left && peers_.silent_for(neighbour) > watch_.settings().heartbeat_timeout;
  if (!neighbour_ended_ && has_ended(neighbour)) {
    neighbour_ended_ = Clock::now();
  }
}

// A rank that leaves in peace says so before its process ends, so its pulse is read after the process was seen to have
// ended.
bool Suspicion::has_ended(int rank) {
  if (!watch_.peers()[static_cast<std::size_t>(rank)].has_ended()) {
    return false;
  }
  peers_.read({rank});
  return !peers_.pulse(rank).left;
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
  if (neighbour_ended_ && Clock::now() - *neighbour_ended_ > patience(has_launcher) && has_ended(neighbour)) {
    return process_ended(neighbour);
  }
  if (neighbour_silent_) {
    return Words{neighbour, core::str("[world] rank ", neighbour, " has sent no heartbeat for ",
                                      seconds(watch_.settings().heartbeat_timeout),
                                      ": it is stopped, or its machine or network is gone")};
  }
  return std::nullopt;
}

Words Suspicion::process_ended(int rank) {
  return {rank, core::str("[world] rank ", rank, " is gone: its process (",
                          watch_.peers()[static_cast<std::size_t>(rank)].pid, ") has ended")};
}

std::optional<Words> Suspicion::judge_loss(const Loss& loss, bool has_launcher) {
  peers_.read(peers_.others());
  const auto age = Clock::now() - loss.since;
  if (age > patience(false)) {
    if (auto words = left_early(loss)) {
      return words;
    }
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
  for (const int other : peers_.others()) {
    if (has_ended(other)) {
      return process_ended(other);
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
