// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ending.h"

#include <csignal>

namespace lockstep::launcher {

void Ending::give_notice(TimePoint now) {
  if (phase_ == Phase::Running) {
    phase_ = Phase::Notice;
    deadline_ = now + notice_;
  }
}

void Ending::stop(TimePoint now) {
  if (phase_ == Phase::Running || phase_ == Phase::Notice) {
    phase_ = Phase::Stopping;
    deadline_ = now + grace_;
  }
}

void Ending::kill(TimePoint now) {
  if (phase_ != Phase::Killing) {
    phase_ = Phase::Killing;
    deadline_ = killing_since_ = now;
  }
}

std::optional<int> Ending::due(TimePoint now) {
  if (phase_ == Phase::Running || now < deadline_) {
    return std::nullopt;
  }
  if (phase_ == Phase::Notice) {
    stop(now);
    return SIGTERM;
  }
  kill(now);
  deadline_ = now + std::chrono::milliseconds(100);
  return SIGKILL;
}

bool Ending::is_hopeless(TimePoint now) const {
  return phase_ == Phase::Killing && now - killing_since_ > std::chrono::seconds(10);
}

std::optional<TimePoint> Ending::deadline() const {
  return phase_ == Phase::Running ? std::nullopt : std::optional(deadline_);
}

}  // namespace lockstep::launcher
