// SPDX-License-Identifier: Apache-2.0
// What a rank's threads share with its watcher thread. Nothing here calls the store, so nothing here can hang on it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/call.h"
#include "comm/failure.h"
#include "comm/peer_process.h"
#include "comm/pulse.h"
#include "comm/wake_up.h"

namespace lockstep::comm {

class Backend;
class Ledger;

struct WatchSettings {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = {};
  std::chrono::milliseconds heartbeat_timeout = {};
  std::chrono::milliseconds mismatch_after = {};
  /// Rank that serves the store, or -1 where that is no rank's business.
  int store_host = -1;
  int launcher_events_fd = -1;
};

/// A collective that broke, most likely because a peer is gone.
struct Loss {
  std::chrono::steady_clock::time_point since;
  /// This rank's view of the group, with the broken collective as the pending one.
  GroupPulse mine;
  std::string reason;
};

/// How long the store has been silent, as seen by somebody who waits. Time is counted in waits, not by the clock: a
/// process that was stopped for an hour, or a machine that slept, has not seen an hour of silence.
struct Silence {
  std::uint64_t answers = 0;
  std::chrono::milliseconds lasted = {};
};

class Watch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Watch(WatchSettings settings) : settings_(settings) {}

  const WatchSettings& settings() const { return settings_; }
  Failure& failure() { return failure_; }

  /// Ends the world with these words or with earlier ones; returns those that count. At most about two seconds.
  Words fail(Words words);
  void report_loss(const Ledger& ledger, const Call& call, const std::string& reason) noexcept;
  /// Fails this rank if the watcher has had no answer from the store for too long. To be called again and again while
  /// something is `waited` for.
  void check_silence(Silence& silence, std::chrono::milliseconds waited);

  /// A group whose collectives are watched and, on failure, ended.
  void add(std::shared_ptr<Ledger> ledger, std::weak_ptr<Backend> backend);
  /// All ranks are known to be there.
  void set_peers(std::vector<PeerProcess> peers);
  /// Makes the watcher look and tell at once.
  void nudge();
  void stop();

  // For the watcher:
  /// Before any other thread knows this object.
  void begin();
  /// Nobody watches any more.
  void end();
  void answered() { ++answers_; }
  bool stopping() const { return stopping_; }
  bool take_nudge() { return nudged_.exchange(false); }
  std::optional<Words> proposal() const;
  std::optional<Loss> loss() const;
  /// Empty until all ranks are known to be there.
  std::vector<PeerProcess> peers() const;
  std::vector<std::shared_ptr<Ledger>> ledgers() const;
  std::vector<GroupPulse> pulses() const;
  /// The world has ended with these words: wakes everybody who waits.
  void settle(const Words& words);
  void sleep(std::chrono::milliseconds limit, int fd) { wake_up_->sleep(limit, fd); }

 private:
  struct Group {
    std::shared_ptr<Ledger> ledger;
    std::weak_ptr<Backend> backend;
  };

  void ring() noexcept;

  const WatchSettings settings_;
  Failure failure_;
  // A world of one has no watcher, and needs no descriptor for one.
  std::optional<WakeUp> wake_up_;
  std::atomic<bool> watched_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> nudged_{false};
  std::atomic<std::uint64_t> answers_{0};
  mutable std::mutex mutex_;
  std::vector<Group> groups_;
  std::vector<PeerProcess> peers_;
  std::optional<Words> proposal_;
  std::optional<Loss> loss_;
};

}  // namespace lockstep::comm
