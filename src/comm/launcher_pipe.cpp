// SPDX-License-Identifier: Apache-2.0
#include "comm/launcher_pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <sstream>

#include "core/check.h"

namespace lockstep::comm {
namespace {

std::optional<Words> parse(const std::string& line) {
  std::istringstream in(line);
  std::string rank;
  int origin = -1;
  if (!(in >> rank >> origin) || rank != "rank" || origin < 0) {
    return std::nullopt;
  }
  return Words{origin, core::str("[world] ", line)};
}

}  // namespace

LauncherPipe::LauncherPipe(int fd) : fd_(fd) {
  // A number that was inherited without its descriptor may by now belong to anything.
  struct stat kind {};
  if (fd_ >= 0 && (::fstat(fd_, &kind) != 0 || !S_ISFIFO(kind.st_mode) || ::fcntl(fd_, F_SETFD, FD_CLOEXEC) != 0)) {
    fd_ = -1;
  }
}

// The descriptor's blocking mode is shared with whoever else holds the pipe, so it is asked first instead of changed.
void LauncherPipe::fill() {
  std::array<char, 4096> block{};
  pollfd source{fd_, POLLIN, 0};
  while (fd_ >= 0 && ::poll(&source, 1, 0) > 0) {
    const auto count = ::read(fd_, block.data(), block.size());
    if (count > 0) {
      buffer_.append(block.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      fd_ = -1;
    }
  }
}

std::vector<Words> LauncherPipe::read() {
  fill();
  std::vector<Words> words;
  for (auto end = buffer_.find('\n'); end != std::string::npos; end = buffer_.find('\n')) {
    if (auto parsed = parse(buffer_.substr(0, end))) {
      words.push_back(std::move(*parsed));
    }
    buffer_.erase(0, end + 1);
  }
  return words;
}

}  // namespace lockstep::comm
