// SPDX-License-Identifier: Apache-2.0
#include "comm/leave.h"

#include <future>
#include <thread>

#include "comm/signal_mask.h"

namespace lockstep::comm {

bool run_or_leave(std::function<void()> end, std::chrono::milliseconds limit) noexcept {
  try {
    const SigpipeBlock block;
    std::packaged_task<void()> task([end = std::move(end)]() mutable {
      end();
      end = nullptr;
    });
    auto done = task.get_future();
    std::thread thread(std::move(task));
    const bool in_time = done.wait_for(limit) == std::future_status::ready;
    if (in_time) {
      thread.join();
    } else {
      thread.detach();
    }
    return in_time;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace lockstep::comm
