// SPDX-License-Identifier: Apache-2.0
// Addresses and listening sockets.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::comm {

/// True for names and addresses that never leave this machine.
bool is_loopback(const std::string& host);

/// Address of the interface through which this machine reaches `host`. Sends nothing.
std::string address_towards(const std::string& host);

/// A socket that listens on 127.0.0.1:`port` only. Throws InputError where the port is taken.
int listen_on_loopback(std::uint16_t port);

}  // namespace lockstep::comm
