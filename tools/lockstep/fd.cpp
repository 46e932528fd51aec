// SPDX-License-Identifier: Apache-2.0
#include "lockstep/fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace lockstep::launcher {

void UniqueFd::close() {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    fail_system("cannot make a pipe", "raise the limit on open files (ulimit -n)");
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void fail_system(const std::string& what, const std::string& advice) {
  throw Error(core::message("lockstep.run", {.what = what, .got = std::strerror(errno), .advice = advice}));
}

void fill_standard_fds() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) {
    fd = ::open("/dev/null", O_RDWR);
  }
  if (fd >= 0) {
    ::close(fd);
  }
}

}  // namespace lockstep::launcher
