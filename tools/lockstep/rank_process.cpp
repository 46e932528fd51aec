// SPDX-License-Identifier: Apache-2.0
#include "lockstep/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "core/check.h"
#include "lockstep/program.h"

namespace lockstep::launcher {
namespace {

struct ChildFds {
  int in = -1;  // -1: keeps the launcher's
  int out = -1;
  int err = -1;
  int events = -1;
};

bool arrange_fds(const ChildFds& fds) {
  const bool input = fds.in < 0 || ::dup2(fds.in, STDIN_FILENO) >= 0;
  return input && ::dup2(fds.out, STDOUT_FILENO) >= 0 && ::dup2(fds.err, STDERR_FILENO) >= 0 &&
         ::fcntl(fds.events, F_SETFD, 0) == 0;
}

// The rank goes when its parent goes, even where that one had no chance to do anything about it.
bool bind_life_to(pid_t parent) {
  return ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == parent;
}

[[noreturn]] void become(const char* path, char* const* arguments, char* const* environment, int status_fd) {
  ::execve(path, arguments, environment);
  const int error = errno;
  // The pipe is empty, so four bytes always fit.
  [[maybe_unused]] const auto sent = ::write(status_fd, &error, sizeof(error));
  ::_exit(127);
}

// Waits for exec, which closes the pipe. Returns 0, or errno of the exec.
int exec_result(int status_fd) {
  int error = 0;
  ssize_t size = 0;
  do {
    size = ::read(status_fd, &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  return size == static_cast<ssize_t>(sizeof(error)) ? error : 0;
}

std::vector<char*> argument_pointers(std::vector<std::string>& arguments) {
  std::vector<char*> list;
  for (auto& argument : arguments) {
    list.push_back(argument.data());
  }
  list.push_back(nullptr);
  return list;
}

pid_t start(const LaunchPlan& plan, const SignalGate& gate, Environment environment, const ChildFds& fds) {
  auto arguments = plan.options.program;
  const auto argument_list = argument_pointers(arguments);
  const auto environment_list = environment.pointers();
  Pipe status = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    fail_system("cannot start another process", "raise the limit on processes (ulimit -u)");
  }
  if (pid == 0) {
    ::setsid();
    if (!bind_life_to(parent) || !arrange_fds(fds)) {
      ::_exit(127);
    }
    gate.restore();
    become(plan.path.c_str(), argument_list.data(), environment_list.data(), status.write_end.get());
  }
  status.write_end.close();
  if (const int error = exec_result(status.read_end.get())) {
    ::waitpid(pid, nullptr, 0);
    fail_exec(plan.options.program.front(), error);
  }
  return pid;
}

std::string tag_of(const RunOptions& options, int rank) {
  return options.tags ? core::str("[", rank, "] ") : "";
}

}  // namespace

struct RankProcess::Pipes {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe events = make_pipe();
};

RankProcess::RankProcess(const LaunchPlan& plan, const SignalGate& gate, int local_rank)
    : RankProcess(plan, gate, local_rank, Pipes()) {}

RankProcess::RankProcess(const LaunchPlan& plan, const SignalGate& gate, int local_rank, Pipes pipes)
    : rank_(global_rank(plan.options, local_rank)),
      error_file_(core::str(plan.scratch, "/error_", rank_, ".json")),
      events_(std::move(pipes.events.write_end)),
      out_(std::move(pipes.out.read_end), STDOUT_FILENO, tag_of(plan.options, rank_)),
      err_(std::move(pipes.err.read_end), STDERR_FILENO, tag_of(plan.options, rank_)) {
  set_nonblocking(events_.get());
  // One terminal cannot serve several readers, so only the first rank can be typed to.
  const UniqueFd nothing(local_rank == 0 ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const ChildFds fds{.in = nothing.get(),
                     .out = pipes.out.write_end.get(),
                     .err = pipes.err.write_end.get(),
                     .events = pipes.events.read_end.get()};
  const RankPlace place{.local_rank = local_rank, .events_fd = fds.events, .error_file = error_file_};
  pid_ = start(plan, gate, rank_environment(plan.environment, plan.options, place), fds);
}

void RankProcess::set_end(const RankEnd& end) {
  end_ = end;
  events_.close();
}

void RankProcess::tell(const std::string& line) const {
  [[maybe_unused]] const auto sent = ::write(events_.get(), line.data(), line.size());
}

}  // namespace lockstep::launcher
