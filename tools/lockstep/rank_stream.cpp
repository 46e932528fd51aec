// SPDX-License-Identifier: Apache-2.0
#include "lockstep/rank_stream.h"

#include <unistd.h>

#include <array>
#include <cerrno>

namespace lockstep::launcher {

RankStream::RankStream(UniqueFd source, int target, std::string tag)
    : source_(std::move(source)), target_(target), tag_(std::move(tag)) {
  set_nonblocking(source_.get());
}

LineSplitter::OnLine RankStream::line_to(OutputQueue& out) {
  return [this, &out](std::string_view line) {
    std::string text;
    text.reserve(tag_.size() + line.size() + 1);
    text += tag_;
    text += line;
    text += '\n';
    out.push(target_, text);
    if (target_ == STDERR_FILENO) {
      last_lines_.add(line);
    }
  };
}

bool RankStream::read_some(OutputQueue& out) {
  std::array<char, 64 * 1024> block;
  const auto size = ::read(source_.get(), block.data(), block.size());
  if (size > 0) {
    splitter_.feed({block.data(), static_cast<std::size_t>(size)}, line_to(out));
    return true;
  }
  if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    source_.close();
    splitter_.finish(line_to(out));
  }
  return false;
}

void RankStream::end(OutputQueue& out) {
  while (is_open() && read_some(out)) {
  }
  source_.close();
  splitter_.finish(line_to(out));
}

}  // namespace lockstep::launcher
