// SPDX-License-Identifier: Apache-2.0
// File descriptors that close themselves. Everything made here is closed on exec, so no rank inherits another's pipe.
#pragma once

#include <string>
#include <utility>

namespace lockstep::launcher {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { close(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

/// Throws Error where the system has no descriptors left.
Pipe make_pipe();

void set_nonblocking(int fd);

/// Throws Error: `[lockstep.run] what; got <text of errno>; advice`.
[[noreturn]] void fail_system(const std::string& what, const std::string& advice = {});

/// Opens /dev/null on those of descriptors 0 to 2 that are closed, so that no pipe lands there by accident.
void fill_standard_fds();

}  // namespace lockstep::launcher
