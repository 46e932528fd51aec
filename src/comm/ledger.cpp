// SPDX-License-Identifier: Apache-2.0
#include "comm/ledger.h"

#include "comm/in_flight.h"

namespace lockstep::comm {

void Ledger::enter(Call& call) {
  std::lock_guard lock(mutex_);
  call.number = ++called_;
  last_ = call;
  signatures_.push_back(call.signature());
  if (signatures_.size() > GroupPulse::kHistory) {
    signatures_.pop_front();
  }
}

void Ledger::track(const Call& call, std::shared_ptr<Progress> progress) {
  std::lock_guard lock(mutex_);
  pending_.push_back({call, Clock::now(), std::move(progress)});
}

void Ledger::close() {
  std::lock_guard lock(mutex_);
  left_ = true;
  pending_.clear();
}

std::uint64_t Ledger::called() const {
  std::lock_guard lock(mutex_);
  return called_;
}

bool Ledger::left() const {
  std::lock_guard lock(mutex_);
  return left_;
}

Ledger::Clock::duration Ledger::pending_for() {
  std::lock_guard lock(mutex_);
  std::erase_if(pending_, [](const Pending& pending) { return pending.progress->ended(); });
  return pending_.empty() ? Clock::duration::zero() : Clock::now() - pending_.front().since;
}

GroupPulse Ledger::pulse() const {
  std::lock_guard lock(mutex_);
  GroupPulse pulse{group_, called_, 0, left_, {signatures_.begin(), signatures_.end()}};
  if (!pending_.empty()) {
    pulse.pending = pending_.front().call.number;
    pulse.pending_text = pending_.front().call.describe();
  }
  if (called_ > 0) {
    pulse.last_text = last_.describe();
  }
  return pulse;
}

}  // namespace lockstep::comm
