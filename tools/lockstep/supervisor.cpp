// SPDX-License-Identifier: Apache-2.0
#include "lockstep/supervisor.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "core/check.h"
#include "lockstep/children.h"
#include "lockstep/error_file.h"

namespace lockstep::launcher {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int milliseconds_until(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 60'000));
}

}  // namespace

Supervisor::Supervisor(const LaunchPlan& plan, const SignalGate& gate, int lifeline)
    : plan_(plan),
      gate_(gate),
      lifeline_(lifeline),
      signals_(gate.open()),
      ending_(plan.options.notice, plan.options.grace) {}

int Supervisor::run() {
  start_ranks();
  while (!is_finished()) {
    wait_once();
  }
  if (abandoned_) {
    return 128 + SIGKILL;
  }
  finish_output();
  summarize();
  flush();
  return exit_code();
}

void Supervisor::start_ranks() {
  for (int local_rank = 0; local_rank < plan_.options.ranks; ++local_rank) {
    ranks_.push_back(std::make_unique<RankProcess>(plan_, gate_, local_rank));
  }
}

int Supervisor::live_ranks() const {
  return static_cast<int>(ranks_.size() - ended_.size());
}

bool Supervisor::is_finished() const {
  return abandoned_ || (live_ranks() == 0 && childless_) || ending_.is_hopeless(Clock::now());
}

// --- The loop -------------------------------------------------------------------------------------------------------

std::vector<RankStream*> Supervisor::streams() {
  std::vector<RankStream*> list;
  for (const auto& rank : ranks_) {
    list.push_back(&rank->out());
    list.push_back(&rank->err());
  }
  return list;
}

int Supervisor::poll_timeout() const {
  const auto deadline = ending_.deadline();
  return deadline ? milliseconds_until(*deadline) : -1;
}

void Supervisor::wait_once() {
  const auto sources = streams();
  const bool may_read = !output_.full();
  std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}, {lifeline_, POLLIN, 0}};
  fds.push_back({output_.empty() ? -1 : output_.next_fd(), POLLOUT, 0});
  for (const auto* source : sources) {
    fds.push_back({may_read ? source->fd() : -1, POLLIN, 0});
  }
  ::poll(fds.data(), fds.size(), poll_timeout());
  if (fds[1].revents != 0) {
    abandoned_ = true;
    kill_descendants(std::chrono::seconds(10));
    return;
  }
  while (const auto signal = next_signal(signals_.get())) {
    on_signal(*signal);
  }
  if (fds[2].revents != 0) {
    write_output();
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (fds[i + 3].revents != 0) {
      sources[i]->read_some(output_);
    }
  }
  enforce_deadline();
}

void Supervisor::write_output() {
  switch (output_.write_some()) {
    case OutputQueue::Written::Fine:
      break;
    case OutputQueue::Written::Lost:
      if (!std::exchange(output_lost_, true)) {
        say(core::message("lockstep.run", {.what = "output is being lost", .advice = "is the disk full?"}));
      }
      break;
    case OutputQueue::Written::ReaderGone:
      // A program of its own would be ended by this signal, and a run is no different.
      end_because_of(SIGPIPE);
      break;
  }
}

// --- Ends and signals -----------------------------------------------------------------------------------------------

void Supervisor::collect_children() {
  for (;;) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) {
      childless_ = pid < 0 && errno == ECHILD;
      break;
    }
    const auto found = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return rank->pid() == pid; });
    if (found != ranks_.end()) {
      ended_.push_back(static_cast<std::size_t>(found - ranks_.begin()));
      on_rank_end(**found, status);
    }
  }
  if (live_ranks() == 0 && !childless_) {
    ending_.give_notice(Clock::now());
  }
}

void Supervisor::on_rank_end(RankProcess& rank, int status) {
  const bool told = ending_.phase() == Ending::Phase::Stopping || ending_.phase() == Ending::Phase::Killing;
  rank.set_end({.status = status, .seconds = seconds_since(started_), .was_told = told});
  if (status != 0) {
    on_failure(rank);
  }
}

void Supervisor::on_failure(const RankProcess& rank) {
  const std::string what = describe_end_of(core::str("rank ", rank.rank()), rank.end()->status);
  for (const auto& other : ranks_) {
    if (!other->end()) {
      other->tell(what + "\n");
    }
  }
  if (ending_.phase() == Ending::Phase::Running && live_ranks() > 0) {
    say(core::message("lockstep.run", {.what = what + "; ending the other ranks"}));
  }
  ending_.give_notice(Clock::now());
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD) {
    collect_children();
  } else if (signal == SIGTSTP) {
    signal_children(SIGSTOP);
  } else if (signal == SIGCONT) {
    signal_children(SIGCONT);
  } else if (ends_run(signal)) {
    end_because_of(signal);
  } else {
    pass_to_ranks(signal);
  }
}

// Not to their groups: helpers that never heard of SIGUSR1 would die of it.
void Supervisor::pass_to_ranks(int signal) {
  for (const auto& rank : ranks_) {
    if (!rank->end()) {
      ::kill(rank->pid(), signal);
    }
  }
}

void Supervisor::end_because_of(int signal) {
  if (ending_.phase() == Ending::Phase::Running) {
    ended_by_ = signal;
  }
  if (signal == SIGINT && ++interrupts_ > 1) {
    ending_.kill(Clock::now());
    return;
  }
  tell_to_end(signal == SIGPIPE ? SIGTERM : signal);
  ending_.stop(Clock::now());
}

void Supervisor::tell_to_end(int signal) {
  signal_children(signal);
  // A stopped process would not hear it.
  signal_children(SIGCONT);
}

void Supervisor::enforce_deadline() {
  const auto signal = ending_.due(Clock::now());
  if (!signal) {
    return;
  }
  if (*signal == SIGKILL) {
    signal_children(SIGKILL);
    return;
  }
  if (live_ranks() == 0) {
    say(core::message("lockstep.run", {.what = "all ranks have ended; processes they left behind are ended too"}));
  }
  tell_to_end(*signal);
}

// --- After the last rank --------------------------------------------------------------------------------------------

void Supervisor::finish_output() {
  for (auto* stream : streams()) {
    stream->end(output_);
  }
}

// Waits for the reader as long as any program would, but not against a signal, nor for long after one.
void Supervisor::flush() {
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  while (!output_.empty()) {
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {lifeline_, POLLIN, 0}, {output_.next_fd(), POLLOUT, 0}};
    ::poll(fds, std::size(fds), ended_by_ ? milliseconds_until(deadline) : -1);
    const auto signal = next_signal(signals_.get());
    if ((signal && ends_run(*signal)) || fds[1].revents != 0 || (ended_by_ && Clock::now() > deadline)) {
      return;
    }
    if (fds[2].revents != 0) {
      write_output();
    }
  }
}

std::vector<RankAccount> Supervisor::accounts() const {
  std::vector<RankAccount> list;
  for (const auto index : ended_) {
    const auto& rank = *ranks_[index];
    RankAccount account{.rank = rank.rank(), .pid = rank.pid(), .end = *rank.end()};
    const auto report = read_error_file(rank.error_file());
    account.words = report ? report->text : rank.err().last_lines().text();
    account.timestamp = report ? report->timestamp : std::nullopt;
    list.push_back(std::move(account));
  }
  return list;
}

void Supervisor::summarize() {
  const auto all = accounts();
  const auto* root = root_cause(all);
  if (root != nullptr) {
    say(failure_summary(all, *root, host_name()));
  } else if (ended_by_ && *ended_by_ != SIGPIPE) {
    say(signal_summary(all, *ended_by_));
  }
  if (!childless_) {
    say(core::message("lockstep.run", {.what = "some processes could not be killed; they hang in the kernel"}));
  }
}

int Supervisor::exit_code() const {
  const auto all = accounts();
  const auto* root = root_cause(all);
  if (root != nullptr) {
    return exit_code_of(root->end.status);
  }
  return ended_by_ ? 128 + *ended_by_ : 0;
}

void Supervisor::say(const std::string& text) {
  output_.push(STDERR_FILENO, text.ends_with('\n') ? text : text + "\n");
}

}  // namespace lockstep::launcher
