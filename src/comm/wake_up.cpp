// SPDX-License-Identifier: Apache-2.0
#include "comm/wake_up.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>

namespace lockstep::comm {

WakeUp::WakeUp() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

WakeUp::~WakeUp() {
  ::close(event_);
}

void WakeUp::ring() noexcept {
  ::eventfd_write(event_, 1);
}

void WakeUp::sleep(std::chrono::milliseconds limit, int fd) {
  // poll ignores entries with a negative descriptor.
  std::array<pollfd, 2> sources{{{event_, POLLIN, 0}, {fd, POLLIN, 0}}};
  ::poll(sources.data(), sources.size(), static_cast<int>(limit.count()));
  eventfd_t rings = 0;
  ::eventfd_read(event_, &rings);
}

}  // namespace lockstep::comm
