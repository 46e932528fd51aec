// SPDX-License-Identifier: Apache-2.0
#include "comm/failure.h"

#include "core/check.h"

namespace lockstep::comm {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

bool Failure::set(Words words) {
  {
    std::lock_guard lock(mutex_);
    if (words_) {
      return false;
    }
    words_ = std::move(words);
    happened_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  return true;
}

std::optional<Words> Failure::words() const {
  std::lock_guard lock(mutex_);
  return words_;
}

void Failure::raise(const std::string& context) const {
  const auto known = words();
  const auto text = context.empty() ? known->text : core::str(known->text, "\n  ", context);
  throw WorldError(known->origin, text);
}

}  // namespace lockstep::comm
