// SPDX-License-Identifier: Apache-2.0
#include "lockstep/port_lease.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "core/check.h"

namespace lockstep::launcher {
namespace {

// Both families at once where the machine has IPv6, as rank 0's server will ask for.
UniqueFd open_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.is_open()) {
    const int on = 1;
    const int off = 0;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (family == AF_INET6) {
      ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
  }
  return fd;
}

// Returns the bound port, or 0 with errno set.
int bind_any_address(int fd, int family, int port) {
  sockaddr_storage address = {};
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
  address.ss_family = static_cast<sa_family_t>(family);
  // An all-zero address is the any-address of either family.
  (family == AF_INET6 ? v6->sin6_port : v4->sin_port) = htons(static_cast<std::uint16_t>(port));
  socklen_t size = family == AF_INET6 ? sizeof(*v6) : sizeof(*v4);
  if (::bind(fd, generic, size) != 0 || ::getsockname(fd, generic, &size) != 0) {
    return 0;
  }
  return ntohs(family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

}  // namespace

PortLease::PortLease(int port) : port_(0) {
  for (const int family : {AF_INET6, AF_INET}) {
    socket_ = open_socket(family);
    port_ = bind_any_address(socket_.get(), family, port);
    if (port_ != 0) {
      return;
    }
    core::check(errno != EADDRINUSE, "lockstep.run", [&] {
      return core::Problem{.what = core::str("port ", port, " is in use"),
                           .advice = "choose another --master-port, or leave it out to get a free one"};
    });
  }
  fail_system(core::str("cannot reserve port ", port));
}

}  // namespace lockstep::launcher
