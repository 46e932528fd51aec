// SPDX-License-Identifier: Apache-2.0
#include "lockstep/children.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

namespace lockstep::launcher {
namespace {

pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  // "pid (name) state parent ...": the name may hold spaces and brackets, so the last bracket is the landmark.
  const auto bracket = text.rfind(')');
  if (bracket == std::string::npos || bracket + 4 > text.size()) {
    return -1;
  }
  pid_t parent = -1;
  std::from_chars(text.data() + bracket + 4, text.data() + text.size(), parent);
  return parent;
}

void signal_group_of(pid_t child, int signal) {
  const pid_t group = ::getpgid(child);
  const bool own_group = group > 1 && group != ::getpgrp();
  ::kill(own_group ? -group : child, signal);
}

// True once this process has no child.
bool collect_ended() {
  pid_t ended = 0;
  do {
    ended = ::waitpid(-1, nullptr, WNOHANG);
  } while (ended > 0 || (ended < 0 && errno == EINTR));
  return ended < 0;
}

}  // namespace

void adopt_orphans() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  if (!proc) {
    return found;
  }
  const pid_t self = ::getpid();
  while (const dirent* entry = ::readdir(proc.get())) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (code == std::errc() && end == name.data() + name.size() && parent_of(pid) == self) {
      found.push_back(pid);
    }
  }
  return found;
}

void signal_children(int signal) {
  // A child keeps its number and its group's until it is collected, so neither can have been reused.
  for (const pid_t child : children()) {
    signal_group_of(child, signal);
  }
}

bool kill_descendants(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  // Each round kills one generation; the next one falls to this process then.
  while (!collect_ended()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    signal_children(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace lockstep::launcher
