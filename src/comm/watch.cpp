// SPDX-License-Identifier: Apache-2.0
#include "comm/watch.h"

#include <algorithm>

#include "comm/backend.h"
#include "comm/ledger.h"
#include "core/check.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

Words Watch::fail(Words words) {
  if (watched_) {
    {
      std::lock_guard lock(mutex_);
      proposal_ = proposal_ ? proposal_ : words;
    }
    ring();
    failure_.wait([] { return false; }, 2s);
  }
  // No watcher, or one that hangs on the store: then this rank at least knows.
  if (!failure_.happened()) {
    settle(words);
  }
  return *failure_.words();
}

void Watch::report_loss(const Ledger& ledger, const Call& call, const std::string& reason) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (loss_) {
      return;
    }
    loss_ = Loss{Clock::now(), ledger.pulse(), first_line(reason)};
    loss_->mine.pending = call.number;
    loss_->mine.pending_text = call.describe();
  }
  ring();
}

void Watch::check_silence(Silence& silence, std::chrono::milliseconds waited) {
  const auto limit = settings_.heartbeat_timeout + 500ms;
  const auto answers = answers_.load();
  silence.lasted = answers == silence.answers ? silence.lasted + waited : 0ms;
  silence.answers = answers;
  if (!watched_ || silence.lasted < limit) {
    return;
  }
  const auto host = settings_.store_host < 0 ? std::string("the store's host")
                                             : core::str("rank ", settings_.store_host, ", which serves the store,");
  settle({settings_.store_host,
          core::str("[world] ", host, " has not answered for ", std::chrono::duration<double>(limit).count(), " s")});
}

void Watch::add(std::shared_ptr<Ledger> ledger, std::weak_ptr<Backend> backend) {
  std::lock_guard lock(mutex_);
  groups_.push_back({std::move(ledger), std::move(backend)});
  // Of groups that were let go, the last ones are enough to tell others why their collectives break.
  constexpr std::ptrdiff_t kKept = 16;
  const auto closed = [](const Group& group) { return group.ledger->closed(); };
  if (std::count_if(groups_.begin(), groups_.end(), closed) > kKept) {
    groups_.erase(std::find_if(groups_.begin(), groups_.end(), closed));
  }
}

void Watch::set_peers(std::vector<PeerProcess> peers) {
  std::lock_guard lock(mutex_);
  peers_ = std::move(peers);
}

void Watch::nudge() {
  nudged_ = true;
  ring();
}

void Watch::stop() {
  stopping_ = true;
  ring();
}

void Watch::begin() {
  wake_up_.emplace();
  watched_ = true;
}

void Watch::ring() noexcept {
  if (wake_up_) {
    wake_up_->ring();
  }
}

void Watch::end() {
  watched_ = false;
}

std::optional<Words> Watch::proposal() const {
  std::lock_guard lock(mutex_);
  return proposal_;
}

std::optional<Loss> Watch::loss() const {
  std::lock_guard lock(mutex_);
  return loss_;
}

std::vector<PeerProcess> Watch::peers() const {
  std::lock_guard lock(mutex_);
  return peers_;
}

std::vector<std::shared_ptr<Ledger>> Watch::ledgers() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Ledger>> ledgers;
  for (const auto& group : groups_) {
    ledgers.push_back(group.ledger);
  }
  return ledgers;
}

std::vector<GroupPulse> Watch::pulses() const {
  std::vector<GroupPulse> pulses;
  for (const auto& ledger : ledgers()) {
    pulses.push_back(ledger->pulse());
  }
  return pulses;
}

// Backends are woken outside the lock: ending NCCL's communicators takes a while.
void Watch::settle(const Words& words) {
  failure_.set(words);
  std::vector<std::shared_ptr<Backend>> backends;
  {
    std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      if (auto backend = group.backend.lock()) {
        backends.push_back(std::move(backend));
      }
    }
  }
  const auto text = failure_.words()->text;
  for (const auto& backend : backends) {
    backend->wake(text);
  }
}

}  // namespace lockstep::comm
