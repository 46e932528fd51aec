// SPDX-License-Identifier: Apache-2.0
#include "lockstep/signals.h"

#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "core/check.h"

namespace lockstep::launcher {
namespace {

bool is_ignored(int signal) {
  struct sigaction action;
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

bool ends_run(int signal) {
  return signal == SIGHUP || signal == SIGINT || signal == SIGQUIT || signal == SIGTERM;
}

SignalGate::SignalGate() {
  // A parent that ignores SIGCHLD would make this process's children vanish unseen.
  ::signal(SIGCHLD, SIG_DFL);
  sigemptyset(&taken_);
  sigaddset(&taken_, SIGCHLD);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    if (!is_ignored(signal)) {
      sigaddset(&taken_, signal);
    }
  }
  ::sigprocmask(SIG_BLOCK, &taken_, &mask_before_);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_before_);
}

UniqueFd SignalGate::open() const {
  UniqueFd fd(::signalfd(-1, &taken_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.is_open()) {
    fail_system("cannot open a signal descriptor");
  }
  return fd;
}

void SignalGate::restore() const {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::optional<int> next_signal(int fd) {
  signalfd_siginfo info;
  if (::read(fd, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

std::string describe_signal(int signal) {
  return core::str("signal ", signal, " (", ::strsignal(signal), ")");
}

std::string describe_end(int status) {
  return WIFSIGNALED(status) ? "killed by " + describe_signal(WTERMSIG(status))
                             : core::str("exited with code ", WEXITSTATUS(status));
}

std::string describe_end_of(const std::string& subject, int status) {
  return subject + (WIFSIGNALED(status) ? " was " : " ") + describe_end(status);
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace lockstep::launcher
