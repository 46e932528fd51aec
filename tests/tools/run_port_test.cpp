// SPDX-License-Identifier: Apache-2.0
// The port that rank 0 will serve.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/launched.h"

namespace lockstep::test {
namespace {

// A program that listens on a loopback port, and was not asked.
class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    ok_ = ::bind(fd_, generic, size) == 0 && ::listen(fd_, 1) == 0 && ::getsockname(fd_, generic, &size) == 0;
    port_ = ntohs(address.sin_port);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { ::close(fd_); }

  bool ok() const { return ok_; }
  int port() const { return port_; }

 private:
  int fd_;
  bool ok_ = false;
  int port_ = 0;
};

// Another program that takes exactly this port.
bool can_be_taken(int port, bool reuse) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = reuse ? 1 : 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool taken = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  ::close(fd);
  return taken;
}

int port_in(const std::string& out) {
  const std::string mark = "MASTER_PORT=";
  return std::stoi(out.substr(out.find(mark) + mark.size()));
}

TEST(RunPort, RankZeroCanServeThePortThatWasKeptForIt) {
  for (const char* address : {"all", "loopback"}) {
    Launched launched(actors({"-n", "3"}, {std::string("0:serve=") + address}));
    launched.finish();
    EXPECT_EQ(launched.out(), "[0] serving\n");
  }
}

TEST(RunPort, SoItCanWithAFixedPort) {
  int port = 0;
  {
    const Listener listener;
    ASSERT_TRUE(listener.ok());
    port = listener.port();
  }
  Launched launched(actors({"-n", "2", "--master-port", std::to_string(port)}, {"0:serve", "0:env"}));
  launched.finish();
  EXPECT_EQ(lines_of(launched.out()).front(), "[0] serving") << launched.err();
  EXPECT_EQ(port_in(launched.out()), port);
}

TEST(RunPort, IsKeptUntilRankZeroComes) {
  Launched launched(actors({"-n", "1"}, {"env", "out=ready", "sleep=60"}));
  launched.await_output("ready");
  const int port = port_in(launched.out());
  EXPECT_FALSE(can_be_taken(port, /*reuse=*/false));
  EXPECT_TRUE(can_be_taken(port, /*reuse=*/true)) << "rank 0's server sets SO_REUSEADDR";
}

TEST(RunPort, APortInUseIsAnErrorBeforeAnythingStarts) {
  const Listener listener;
  ASSERT_TRUE(listener.ok());
  const auto port = std::to_string(listener.port());
  Launched launched(actors({"-n", "2", "--master-port", port}, {"out=started"}));
  launched.finish();
  EXPECT_EQ(launched.code(), 2);
  EXPECT_EQ(launched.out(), "");
  EXPECT_NE(launched.err().find("port " + port + " is in use"), std::string::npos) << launched.err();
}

TEST(RunPort, JobsSideBySideGetDifferentPorts) {
  const auto arguments = actors({"-n", "1"}, {"env", "0:serve", "sleep=60"});
  Launched first(arguments), second(arguments), third(arguments);
  for (auto* launched : {&first, &second, &third}) {
    launched->await_output("[0] serving");
  }
  EXPECT_NE(port_in(first.out()), port_in(second.out()));
  EXPECT_NE(port_in(first.out()), port_in(third.out()));
  EXPECT_NE(port_in(second.out()), port_in(third.out()));
}

TEST(RunPort, AnotherMachinesLauncherLeavesThePortAlone) {
  const Listener listener;
  ASSERT_TRUE(listener.ok());
  Launched launched(actors(
      {"--nnodes", "2", "--node-rank", "1", "--master-addr", "head", "--master-port", std::to_string(listener.port())},
      {"out=started"}));
  launched.finish();
  EXPECT_EQ(launched.out(), "[1] started\n");
}

}  // namespace
}  // namespace lockstep::test
