// SPDX-License-Identifier: Apache-2.0
#include "lockstep/output_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "lockstep/fd.h"

namespace lockstep::launcher {
namespace {

// Lends a descriptor's number (stdout's or stderr's) to a pipe for the length of a test.
class Redirected {
 public:
  explicit Redirected(int fd) : fd_(fd), saved_(::fcntl(fd, F_DUPFD_CLOEXEC, 10)), pipe_(make_pipe()) {
    ::dup2(pipe_.write_end.get(), fd);
    pipe_.write_end.close();
    set_nonblocking(pipe_.read_end.get());
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;
  ~Redirected() { ::dup2(saved_.get(), fd_); }

  std::string read() {
    char block[65536];
    const auto size = ::read(pipe_.read_end.get(), block, sizeof(block));
    return {block, size > 0 ? static_cast<std::size_t>(size) : 0};
  }
  void close_reader() { pipe_.read_end.close(); }

 private:
  int fd_;
  UniqueFd saved_;
  Pipe pipe_;
};

using Written = OutputQueue::Written;

TEST(OutputQueue, KeepsTheOrderBetweenStreams) {
  OutputQueue queue;
  queue.push(1, "a\n");
  queue.push(1, "b\n");
  queue.push(2, "c\n");
  queue.push(1, "d\n");
  Redirected out(1), err(2);
  EXPECT_EQ(queue.next_fd(), 1);
  EXPECT_EQ(queue.write_some(), Written::Fine);
  EXPECT_EQ(out.read(), "a\nb\n");
  EXPECT_EQ(queue.next_fd(), 2);
  EXPECT_EQ(queue.write_some(), Written::Fine);
  EXPECT_EQ(err.read(), "c\n");
  EXPECT_EQ(queue.write_some(), Written::Fine);
  EXPECT_EQ(out.read(), "d\n");
  EXPECT_TRUE(queue.empty());
}

TEST(OutputQueue, WritesPipesInPiecesThatCannotBlock) {
  OutputQueue queue;
  const std::string text(100'000, 'x');
  queue.push(1, text);
  Redirected out(1);
  std::string seen;
  while (!queue.empty()) {
    ASSERT_EQ(queue.write_some(), Written::Fine);
    const auto piece = out.read();
    EXPECT_LE(piece.size(), 4096u);
    seen += piece;
  }
  EXPECT_EQ(seen, text);
}

TEST(OutputQueue, IsFullUntilItHasBeenWritten) {
  OutputQueue queue;
  queue.push(1, std::string((1 << 20) + 1, 'x'));
  EXPECT_TRUE(queue.full());
  Redirected out(1);
  queue.write_some();
  EXPECT_FALSE(queue.full());
  queue.clear();
  EXPECT_TRUE(queue.empty());
}

TEST(OutputQueue, AGoneReaderLosesItsStreamOnly) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  OutputQueue queue;
  queue.push(1, "lost\n");
  queue.push(2, "kept\n");
  queue.push(1, "lost too\n");
  Redirected out(1), err(2);
  out.close_reader();
  EXPECT_EQ(queue.write_some(), Written::ReaderGone);
  queue.push(1, "not even queued\n");
  EXPECT_EQ(queue.write_some(), Written::Fine);
  EXPECT_EQ(err.read(), "kept\n");
  EXPECT_TRUE(queue.empty());
  std::signal(SIGPIPE, before);
}

TEST(OutputQueue, AFullDiskLosesThePieceAndGoesOn) {
  OutputQueue queue;
  queue.push(1, "lost\n");
  const UniqueFd saved(::fcntl(1, F_DUPFD_CLOEXEC, 10));
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ::dup2(full.get(), 1);
  const auto written = queue.write_some();
  ::dup2(saved.get(), 1);
  EXPECT_EQ(written, Written::Lost);
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace lockstep::launcher
