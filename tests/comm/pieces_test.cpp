// SPDX-License-Identifier: Apache-2.0
// The small parts of the watch over a world, each alone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/error_board.h"
#include "comm/error_file.h"
#include "comm/launcher_pipe.h"
#include "comm/leave.h"
#include "comm/network.h"
#include "comm/peer_process.h"
#include "comm/rendezvous.h"
#include "comm/signal_mask.h"
#include "comm/wake_up.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

TEST(ErrorBoard, first_writer_wins_and_every_writer_gets_its_words) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  ErrorBoard first(store);
  ErrorBoard second(store);
  EXPECT_FALSE(second.read());
  EXPECT_EQ(first.post({3, "the first words\nin two lines"}).text, "the first words\nin two lines");
  const auto winner = second.post({1, "later words"});
  EXPECT_EQ(winner.text, "the first words\nin two lines");
  EXPECT_EQ(winner.origin, 3);
  EXPECT_EQ(second.read()->text, winner.text);
}

TEST(Failure, is_set_once_and_wakes_those_who_wait) {
  Failure failure;
  EXPECT_FALSE(failure.wait([] { return false; }, 1ms));
  EXPECT_NO_THROW(failure.check());
  std::thread setter([&] { failure.set({2, "words"}); });
  EXPECT_TRUE(failure.wait([] { return false; }, 10s));
  setter.join();
  EXPECT_FALSE(failure.set({0, "other words"}));
  try {
    failure.raise("in a call");
  } catch (const WorldError& error) {
    EXPECT_STREQ(error.what(), "words\n  in a call");
    EXPECT_EQ(error.origin(), 2);
  }
}

class PipeTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe(ends_.data()), 0); }
  void TearDown() override {
    ::close(ends_[0]);
    close_writer();
  }
  void write(const std::string& text) const {
    ASSERT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close_writer() { ::close(std::exchange(ends_[1], -1)); }

  std::array<int, 2> ends_{};
};

TEST_F(PipeTest, launchers_lines_become_words) {
  LauncherPipe pipe(ends_[0]);
  EXPECT_TRUE(pipe.read().empty());
  write("rank 1 was killed by signal 9 (Killed)\nnonsense\nrank 2 exi");
  const auto words = pipe.read();
  ASSERT_EQ(words.size(), 1);
  EXPECT_EQ(words[0].origin, 1);
  EXPECT_EQ(words[0].text, "[world] rank 1 was killed by signal 9 (Killed)");
  write("ted with code 3\n");
  EXPECT_EQ(pipe.read().at(0).origin, 2);
}

TEST_F(PipeTest, end_of_the_launcher_is_no_news) {
  LauncherPipe pipe(ends_[0]);
  write("rank 0 exited with code 1\n");
  close_writer();
  EXPECT_EQ(pipe.read().size(), 1);
  EXPECT_EQ(pipe.fd(), -1);
  EXPECT_TRUE(pipe.read().empty());
}

TEST_F(PipeTest, readable_pipe_ends_a_sleep) {
  WakeUp wake_up;
  write("x");
  const auto start = std::chrono::steady_clock::now();
  wake_up.sleep(30s, ends_[0]);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST(LauncherPipe, number_without_a_pipe_is_ignored) {
  EXPECT_EQ(LauncherPipe(-1).fd(), -1);
  EXPECT_EQ(LauncherPipe(987).fd(), -1);
  const int file = ::open("/dev/null", O_RDONLY);
  EXPECT_EQ(LauncherPipe(file).fd(), -1);
  ::close(file);
}

TEST(WakeUp, ring_ends_a_sleep_even_if_it_came_before) {
  WakeUp wake_up;
  wake_up.ring();
  const auto start = std::chrono::steady_clock::now();
  wake_up.sleep(30s, -1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST(PeerProcess, is_known_to_have_ended_once_it_has) {
  std::array<int, 2> gate{};
  ASSERT_EQ(::pipe(gate.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(gate[1]);
    [[maybe_unused]] const auto count = ::read(gate[0], &byte, 1);
    ::_exit(0);
  }
  auto process = PeerProcess::self();
  EXPECT_FALSE(process.has_ended());
  process.pid = child;
  process.started = PeerProcess::started_at(child);
  EXPECT_FALSE(process.has_ended());
  EXPECT_FALSE(PeerProcess::decode(process.encode()).has_ended());
  ::close(gate[1]);
  ::close(gate[0]);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_TRUE(process.has_ended()) << "as a zombie";
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(process.has_ended()) << "reaped";
}

TEST(PeerProcess, on_another_machine_cannot_be_seen) {
  PeerProcess process{"elsewhere", 1, 1};
  EXPECT_FALSE(process.has_ended());
}

TEST(PeerProcess, number_used_again_is_another_process) {
  auto process = PeerProcess::self();
  process.pid = static_cast<int>(::getppid());
  process.started = 1;
  EXPECT_TRUE(process.has_ended());
}

TEST(ErrorFile, is_what_torchrun_reads) {
  const auto file = nlohmann::json::parse(error_file_text("[rank 1] \"bad\"\nnews \xff", 1700000000));
  EXPECT_EQ(file["message"]["message"], "[rank 1] \"bad\"\nnews \xef\xbf\xbd");
  EXPECT_EQ(file["message"]["extraInfo"]["timestamp"], "1700000000");
  EXPECT_TRUE(file["message"]["extraInfo"].contains("py_callstack"));
}

TEST(SigpipeBlock, is_inherited_by_threads_and_lifted_afterwards) {
  const auto blocked = [] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return sigismember(&mask, SIGPIPE) == 1;
  };
  bool in_thread = false;
  ASSERT_FALSE(blocked());
  {
    const SigpipeBlock block;
    std::thread([&] { in_thread = blocked(); }).join();
  }
  EXPECT_TRUE(in_thread);
  EXPECT_FALSE(blocked());
}

TEST(RunOrLeave, waits_for_what_ends_and_leaves_what_does_not) {
  auto ran = std::make_shared<std::atomic<bool>>(false);
  EXPECT_TRUE(run_or_leave([ran] { *ran = true; }, 10s));
  EXPECT_TRUE(*ran);
  auto gate = std::make_shared<std::promise<void>>();
  auto ended = std::make_shared<std::promise<void>>();
  EXPECT_FALSE(run_or_leave([gate, ended] { gate->get_future().wait(), ended->set_value(); }, 10ms));
  gate->set_value();
  ended->get_future().wait();
}

TEST(Network, loopback_names) {
  EXPECT_TRUE(is_loopback("127.0.0.1"));
  EXPECT_TRUE(is_loopback("localhost"));
  EXPECT_FALSE(is_loopback("128.0.0.1"));
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
}

TEST(Network, taken_port_is_an_error_with_advice) {
  const int first = listen_on_loopback(0);
  sockaddr_in address{};
  socklen_t length = sizeof address;
  ::getsockname(first, reinterpret_cast<sockaddr*>(&address), &length);
  try {
    listen_on_loopback(ntohs(address.sin_port));
    ADD_FAILURE() << "no error";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("choose another master_port"), std::string::npos) << error.what();
  }
  ::close(first);
}

WorldOptions on_cpu(int rank, int size) {
  WorldOptions options;
  options.rank = rank;
  options.size = size;
  options.device = c10::Device(c10::kCPU);
  options.master_port = 29500;
  return options;
}

TEST(Options, gaps_are_filled) {
  const auto options = completed(on_cpu(1, 2));
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.local_size, 2);
  EXPECT_EQ(options.backend, BackendKind::Gloo);
  EXPECT_EQ(completed(on_cpu(0, 1)).backend, BackendKind::Self);
}

TEST(Options, nonsense_is_refused) {
  const auto refused = [](const std::function<void(WorldOptions&)>& spoil) {
    auto options = on_cpu(1, 2);
    spoil(options);
    EXPECT_THROW(completed(options), InputError);
  };
  refused([](WorldOptions& o) { o.rank = 2; });
  refused([](WorldOptions& o) { o.rank = -1; });
  refused([](WorldOptions& o) { o.size = 0; });
  refused([](WorldOptions& o) { o.local_rank = 5; });
  refused([](WorldOptions& o) { o.local_size = 3; });
  refused([](WorldOptions& o) { o.master_port = 0; });
  refused([](WorldOptions& o) { o.master_port = 70000; });
  refused([](WorldOptions& o) { o.master_addr = ""; });
  refused([](WorldOptions& o) { o.backend = BackendKind::Self; });
  refused([](WorldOptions& o) { o.backend = BackendKind::Nccl; });
  refused([](WorldOptions& o) { o.timeout = 0ms; });
}

}  // namespace
}  // namespace lockstep::comm
