// SPDX-License-Identifier: Apache-2.0
#include "comm/peer_process.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "core/check.h"

namespace lockstep::comm {
namespace {

struct Status {
  char state = 'X';
  std::uint64_t started = 0;
};

// /proc/PID/stat: the name in parentheses may hold anything, so fields are counted from the last ')'. proc(5)
Status read_status(int pid) {
  std::ifstream file(core::str("/proc/", pid, "/stat"));
  std::string line;
  Status status;
  if (!std::getline(file, line)) {
    return status;
  }
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  fields >> status.state;
  for (int field = 4; field < 22; ++field) {
    fields >> skipped;
  }
  fields >> status.started;
  return status;
}

std::string machine_name() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  const auto length = ::readlink("/proc/self/ns/pid", space.data(), space.size());
  return boot + "/" + std::string(space.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
}

}  // namespace

PeerProcess PeerProcess::self() {
  const int pid = static_cast<int>(::getpid());
  return {machine_name(), pid, read_status(pid).started};
}

std::uint64_t PeerProcess::started_at(int pid) {
  return read_status(pid).started;
}

PeerProcess PeerProcess::decode(const std::string& text) {
  PeerProcess process;
  std::istringstream(text) >> process.machine >> process.pid >> process.started;
  return process;
}

std::string PeerProcess::encode() const {
  return core::str(machine, " ", pid, " ", started);
}

bool PeerProcess::has_ended() const {
  static const std::string here = machine_name();
  if (pid == 0 || machine != here || pid == static_cast<int>(::getpid())) {
    return false;
  }
  const auto status = read_status(pid);
  return status.state == 'X' || status.state == 'Z' || status.started != started;
}

}  // namespace lockstep::comm
