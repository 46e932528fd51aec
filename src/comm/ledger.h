// SPDX-License-Identifier: Apache-2.0
// The collectives of one group that this rank has called and that are not done.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/call.h"
#include "comm/pulse.h"

namespace lockstep::comm {

class Progress;

class Ledger {
 public:
  using Clock = std::chrono::steady_clock;

  /// `members`: the group's ranks, as ranks of the whole world.
  Ledger(std::string group, std::vector<int> members) : group_(std::move(group)), members_(std::move(members)) {}

  const std::string& group() const { return group_; }
  const std::vector<int>& members() const { return members_; }

  /// Numbers the call and remembers what it was.
  void enter(Call& call);
  void track(const Call& call, std::shared_ptr<Progress> progress);

  /// This rank lets go of the group, and nothing is pending any more. Others are only told so `in_peace`: where an
  /// exception is under way, its words are better than that.
  void close(bool in_peace);

  std::uint64_t called() const;
  bool closed() const;

  /// Forgets what has ended. How long the oldest of the rest has been under way; zero if there is none.
  Clock::duration pending_for();

  GroupPulse pulse() const;

 private:
  struct Pending {
    Call call;
    Clock::time_point since;
    std::shared_ptr<Progress> progress;
  };

  // Many collectives may be in flight together, and the oldest is the one that is compared.
  static constexpr std::size_t kRemembered = 1024;

  void add_window(GroupPulse& pulse) const;

  const std::string group_;
  const std::vector<int> members_;
  mutable std::mutex mutex_;
  std::uint64_t called_ = 0;
  bool left_ = false;
  bool closed_ = false;
  Call last_;
  std::deque<std::uint32_t> signatures_;
  std::deque<Pending> pending_;
};

}  // namespace lockstep::comm
