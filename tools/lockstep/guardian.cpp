// SPDX-License-Identifier: Apache-2.0
#include "lockstep/guardian.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>

#include "core/check.h"
#include "lockstep/children.h"

namespace lockstep::launcher {
namespace {

constexpr std::chrono::seconds kill_limit(10);

void complain(const std::string& text) {
  std::fputs((text + "\n").c_str(), stderr);
}

int supervise_safely(const std::function<int(int)>& supervise, int lifeline) {
  try {
    return supervise(lifeline);
  } catch (const std::exception& error) {
    complain(error.what());
  }
  kill_descendants(kill_limit);
  return 1;
}

void pass_on(int signal, pid_t supervisor) {
  ::kill(supervisor, signal);
  if (signal == SIGTSTP) {
    // Ctrl-Z: the supervisor stops the ranks, and the shell waits for this process to stop.
    ::raise(SIGSTOP);
  }
}

// The supervisor's wait status once it has ended.
std::optional<int> collect(pid_t supervisor) {
  int status = 0;
  return ::waitpid(supervisor, &status, WNOHANG) == supervisor ? std::optional(status) : std::nullopt;
}

int guard(const SignalGate& gate, pid_t supervisor) {
  for (;;) {
    const int signal = ::sigwaitinfo(&gate.taken(), nullptr);
    if (signal > 0 && signal != SIGCHLD) {
      pass_on(signal, supervisor);
    }
    if (const auto status = collect(supervisor)) {
      if (WIFSIGNALED(*status)) {
        complain(core::message("lockstep.run", {.what = describe_end_of("the supervisor", *status),
                                                .advice = "everything it had started is ended with it"}));
      }
      return exit_code_of(*status);
    }
  }
}

}  // namespace

int run_guarded(const SignalGate& gate, const std::function<int(int lifeline)>& supervise) {
  adopt_orphans();
  Pipe lifeline = make_pipe();
  const pid_t supervisor = ::fork();
  if (supervisor < 0) {
    fail_system("cannot start another process", "raise the limit on processes (ulimit -u)");
  }
  if (supervisor == 0) {
    // Out of the reach of Ctrl-C and of signals to the guardian's group, which would otherwise come twice.
    ::setsid();
    adopt_orphans();
    lifeline.write_end.close();
    const int code = supervise_safely(supervise, lifeline.read_end.get());
    std::fflush(nullptr);
    ::_exit(code);
  }
  lifeline.read_end.close();
  const int code = guard(gate, supervisor);
  kill_descendants(kill_limit);
  return code;
}

}  // namespace lockstep::launcher
