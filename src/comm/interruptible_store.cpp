// SPDX-License-Identifier: Apache-2.0
#include "comm/interruptible_store.h"

#include <algorithm>

#include "core/check.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

void InterruptibleStore::wait(const Keys& keys, const Milliseconds& timeout) {
  const auto deadline = Watch::Clock::now() + timeout;
  auto pause = 1ms;
  while (!store_->check(keys)) {
    if (Watch::Clock::now() > deadline) {
      throw std::runtime_error(core::str("no answer from the other ranks within ", timeout.count(), " ms"));
    }
    watch_->failure().wait([] { return false; }, pause);
    watch_->failure().check();
    pause = std::min(pause * 2, 20ms);
  }
}

InterruptibleStore::Bytes InterruptibleStore::get(const std::string& key) {
  wait({key});
  return store_->get(key);
}

std::vector<InterruptibleStore::Bytes> InterruptibleStore::multiGet(const Keys& keys) {
  wait(keys);
  return store_->multiGet(keys);
}

c10::intrusive_ptr<c10d::Store> InterruptibleStore::clone() {
  return c10::make_intrusive<InterruptibleStore>(store_->clone(), watch_);
}

}  // namespace lockstep::comm
