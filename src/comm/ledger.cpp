// SPDX-License-Identifier: Apache-2.0
#include "comm/ledger.h"

#include <algorithm>

#include "comm/in_flight.h"

namespace lockstep::comm {

void Ledger::enter(Call& call) {
  std::lock_guard lock(mutex_);
  call.number = ++called_;
  last_ = call;
  signatures_.push_back(call.signature());
  if (signatures_.size() > kRemembered) {
    signatures_.pop_front();
  }
}

void Ledger::track(const Call& call, std::shared_ptr<Progress> progress) {
  std::lock_guard lock(mutex_);
  pending_.push_back({call, Clock::now(), std::move(progress)});
}

void Ledger::close(bool in_peace) {
  std::lock_guard lock(mutex_);
  left_ = in_peace;
  closed_ = true;
  pending_.clear();
}

std::uint64_t Ledger::called() const {
  std::lock_guard lock(mutex_);
  return called_;
}

bool Ledger::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

Ledger::Clock::duration Ledger::pending_for() {
  std::lock_guard lock(mutex_);
  std::erase_if(pending_, [](const Pending& pending) { return pending.progress->ended(); });
  return pending_.empty() ? Clock::duration::zero() : Clock::now() - pending_.front().since;
}

GroupPulse Ledger::pulse() const {
  std::lock_guard lock(mutex_);
  GroupPulse pulse{group_, called_, 0, left_};
  if (!pending_.empty()) {
    pulse.pending = pending_.front().call.number;
    pulse.pending_text = pending_.front().call.describe();
  }
  if (called_ > 0) {
    pulse.last_text = last_.describe();
  }
  add_window(pulse);
  return pulse;
}

void Ledger::add_window(GroupPulse& pulse) const {
  constexpr std::uint64_t kBefore = 8;
  const auto oldest = called_ - signatures_.size() + 1;
  const auto last = called_ < GroupPulse::kWindow ? 1 : called_ - GroupPulse::kWindow + 1;
  const auto wanted = pulse.pending == 0 ? last : std::min(last, pulse.pending - std::min(pulse.pending, kBefore));
  pulse.first = std::max(wanted, oldest);
  const auto from = signatures_.begin() + static_cast<std::ptrdiff_t>(pulse.first - oldest);
  const auto count = std::min<std::ptrdiff_t>(GroupPulse::kWindow, signatures_.end() - from);
  pulse.signatures.assign(from, from + count);
}

}  // namespace lockstep::comm
