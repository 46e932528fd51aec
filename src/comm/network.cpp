// SPDX-License-Identifier: Apache-2.0
#include "comm/network.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>

#include "core/check.h"

namespace lockstep::comm {
namespace {

class Socket {
 public:
  Socket(int family, int type) : fd_(::socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  core::check(error == 0, "world", [&] {
    return core::Problem{core::str("cannot find the address of '", host, "'"),
                         ::gai_strerror(error),
                         {},
                         "give an address that this machine can resolve as master_addr"};
  });
  return {found, &::freeaddrinfo};
}

// Connecting a datagram socket only picks a route; the socket's own name is then the wanted address.
std::string route_source(const addrinfo& target) {
  const Socket socket(target.ai_family, SOCK_DGRAM);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  std::array<char, NI_MAXHOST> name{};
  auto* address = reinterpret_cast<sockaddr*>(&own);
  if (::connect(socket.fd(), target.ai_addr, target.ai_addrlen) != 0 ||
      ::getsockname(socket.fd(), address, &length) != 0 ||
      ::getnameinfo(address, length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return name.data();
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

std::string address_towards(const std::string& host) {
  if (is_loopback(host)) {
    return host == "::1" ? host : "127.0.0.1";
  }
  const auto targets = resolve(host);
  for (const auto* target = targets.get(); target != nullptr; target = target->ai_next) {
    if (auto address = route_source(*target); !address.empty()) {
      return address;
    }
  }
  core::fail("world", {core::str("this machine has no route to master_addr '", host, "'")});
}

int listen_on_loopback(std::uint16_t port) {
  Socket socket(AF_INET, SOCK_STREAM);
  const int reuse = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool ok = ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                  ::listen(socket.fd(), SOMAXCONN) == 0;
  const int error = errno;
  core::check(ok, "world", [&] {
    return core::Problem{core::str("rank 0 cannot serve the store on 127.0.0.1:", port),
                         std::strerror(error),
                         {},
                         "choose another master_port, or end the program that uses this one"};
  });
  return socket.release();
}

}  // namespace lockstep::comm
