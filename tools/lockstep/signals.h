// SPDX-License-Identifier: Apache-2.0
// Which signals the launcher takes part in, and how the end of a process is put into words.
#pragma once

#include <csignal>
#include <optional>
#include <string>

#include "lockstep/fd.h"

namespace lockstep::launcher {

/// True for SIGHUP, SIGINT, SIGQUIT and SIGTERM, which end a run.
bool ends_run(int signal);

/// Blocks the signals that the launcher forwards, and SIGCHLD, for this process and those it forks; they are then
/// read, not delivered. Signals that were ignored at the start (`nohup`) stay ignored. Keeps what it changed, so that
/// programs start with the signal state that the launcher was started with.
class SignalGate {
 public:
  SignalGate();

  const sigset_t& taken() const { return taken_; }

  /// A descriptor that the taken signals are read from. Closed on exec.
  UniqueFd open() const;

  /// Puts back the signal state of the start. For a child process, before exec.
  void restore() const;

 private:
  sigset_t taken_;
  sigset_t mask_before_;
  struct sigaction pipe_before_;
};

/// Next signal of `SignalGate::open()`'s descriptor (which must be non-blocking), or nothing.
std::optional<int> next_signal(int fd);

/// "killed by signal 9 (Killed)" or "exited with code 3", from waitpid's status.
std::string describe_end(int status);

/// The same with "rank 2 was" or "rank 2" before it.
std::string describe_end_of(const std::string& subject, int status);

/// 0 for a normal end, the exit code, or 128 + signal, as shells have it.
int exit_code_of(int status);

/// "signal 9 (Killed)"
std::string describe_signal(int signal);

}  // namespace lockstep::launcher
