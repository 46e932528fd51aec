// SPDX-License-Identifier: Apache-2.0
#include "lockstep/output_queue.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace lockstep::launcher {
namespace {

constexpr std::size_t segment_size = 64 * 1024;

// A pipe that poll() calls writable takes PIPE_BUF bytes at once; a file takes anything.
std::size_t safe_length(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? segment_size : PIPE_BUF;
}

}  // namespace

void OutputQueue::push(int fd, std::string_view text) {
  if (gone_[fd] || text.empty()) {
    return;
  }
  if (segments_.empty() || segments_.back().fd != fd || segments_.back().text.size() > segment_size) {
    segments_.push_back({.fd = fd, .text = {}});
  }
  segments_.back().text += text;
  size_ += text.size();
}

OutputQueue::Written OutputQueue::write_some() {
  const auto& segment = segments_.front();
  const auto length = std::min(segment.text.size() - segment.written, safe_length(segment.fd));
  const auto done = ::write(segment.fd, segment.text.data() + segment.written, length);
  if (done >= 0) {
    advance(static_cast<std::size_t>(done));
    return Written::Fine;
  }
  if (errno == EINTR || errno == EAGAIN) {
    return Written::Fine;
  }
  if (errno == EPIPE || errno == EIO) {
    drop(segment.fd);
    return Written::ReaderGone;
  }
  advance(length);
  return Written::Lost;
}

void OutputQueue::advance(std::size_t count) {
  auto& segment = segments_.front();
  segment.written += count;
  size_ -= count;
  if (segment.written == segment.text.size()) {
    segments_.pop_front();
  }
}

void OutputQueue::clear() {
  segments_.clear();
  size_ = 0;
}

void OutputQueue::drop(int fd) {
  gone_[fd] = true;
  std::erase_if(segments_, [&](const Segment& segment) { return segment.fd == fd; });
  size_ = 0;
  for (const auto& segment : segments_) {
    size_ += segment.text.size() - segment.written;
  }
}

}  // namespace lockstep::launcher
