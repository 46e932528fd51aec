// SPDX-License-Identifier: Apache-2.0
#include "support/process_ranks.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "core/check.h"
#include "lockstep/comm/launch.h"

extern char** environ;

namespace lockstep::test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::string_view kFlag = "--rank-program=";

std::map<std::string, int (*)(World&)>& programs() {
  static std::map<std::string, int (*)(World&)> known;
  return known;
}

// What a launcher would set, with timeouts that let a fault end in seconds.
std::map<std::string, std::string> environment_of(int rank, const ProcessRanks::Options& options, int port) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    variables[text.substr(0, text.find('='))] = text.substr(std::min(text.find('=') + 1, text.size()));
  }
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(options.size);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  variables["OMP_NUM_THREADS"] = "1";
  variables["LOCKSTEP_DEVICE"] = "cpu";
  variables["LOCKSTEP_TIMEOUT_S"] = "30";
  variables["LOCKSTEP_MISMATCH_AFTER_S"] = "0.5";
  for (const auto& [name, value] : options.environment) {
    variables[name] = value;
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error(core::str("pipe: ", std::strerror(errno)));
  }
  return ends;
}

// Between fork and exec of a process with threads: system calls only.
[[noreturn]] void become(int output, int events, char** arguments, char** variables) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_DFL);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::fcntl(events, F_SETFD, 0);
  ::execve("/proc/self/exe", arguments, variables);
  ::_exit(127);
}

}  // namespace

RankProgram::RankProgram(const char* name, int (*body)(World&)) {
  programs()[name] = body;
}

std::optional<int> run_rank_program(int argc, char** argv) {
  if (argc < 2 || !std::string_view(argv[1]).starts_with(kFlag)) {
    return std::nullopt;
  }
  auto* body = programs().at(argv[1] + kFlag.size());
  int code = 0;
  try {
    auto world = World::from_environment();
    const int failed = run_main(world, [&] { code = body(world); });
    return failed != 0 ? failed : code;
  } catch (const std::exception& error) {
    say(core::str("no world: ", error.what()));
    return 2;
  }
}

void say(const std::string& line) {
  const auto text = line + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ::bind(socket, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(socket);
  return ntohs(address.sin_port);
}

ProcessRanks::ProcessRanks(const Options& options) : launcher_(options.launcher) {
  ::signal(SIGPIPE, SIG_IGN);
  const int port = free_port();
  for (int rank = 0; rank < options.size; ++rank) {
    processes_.push_back(start(rank, options, port));
  }
}

ProcessRanks::~ProcessRanks() {
  for (auto& process : processes_) {
    if (!process.ended) {
      ::kill(process.pid, SIGKILL);
      ::waitpid(process.pid, nullptr, 0);
    }
    ::close(process.output);
    ::close(process.events);
  }
}

ProcessRanks::Process ProcessRanks::start(int rank, const Options& options, int port) {
  const auto output = make_pipe();
  const auto events = make_pipe();
  auto variables = environment_of(rank, options, port);
  if (launcher_) {
    variables["LOCKSTEP_EVENTS_FD"] = std::to_string(events[0]);
  }
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) {
    entries.push_back(name + "=" + value);
  }
  std::vector<std::string> words{"rank", std::string(kFlag) + options.program};
  const auto environment = pointers(entries);
  const auto arguments = pointers(words);
  const pid_t pid = ::fork();
  if (pid == 0) {
    become(output[1], events[0], const_cast<char**>(arguments.data()), const_cast<char**>(environment.data()));
  }
  ::close(output[1]);
  ::close(events[0]);
  Process process;
  process.pid = pid;
  process.output = output[0];
  process.events = events[1];
  process.end.rank = rank;
  return process;
}

void ProcessRanks::await(int rank, const std::string& text, std::chrono::milliseconds limit) {
  auto& process = processes_[static_cast<std::size_t>(rank)];
  const auto deadline = Clock::now() + limit;
  while (!process.end.said(text)) {
    if (process.ended || Clock::now() > deadline) {
      throw std::runtime_error(core::str("rank ", rank, " never said '", text, "' but: ", process.end.output));
    }
    pump(50ms);
  }
}

void ProcessRanks::signal(int rank, int number) {
  ::kill(processes_[static_cast<std::size_t>(rank)].pid, number);
}

std::vector<RankEnd> ProcessRanks::finish(std::chrono::milliseconds limit, const std::vector<int>& who) {
  std::vector<Process*> wanted;
  for (auto& process : processes_) {
    if (who.empty() || std::find(who.begin(), who.end(), process.end.rank) != who.end()) {
      wanted.push_back(&process);
    }
  }
  const auto deadline = Clock::now() + limit;
  const auto all_ended = [&] { return std::all_of(wanted.begin(), wanted.end(), [](auto* p) { return p->ended; }); };
  while (!all_ended() && Clock::now() < deadline) {
    pump(50ms);
  }
  std::vector<RankEnd> ends;
  for (auto* process : wanted) {
    if (!process->ended) {
      process->end.hung = true;
      ::kill(process->pid, SIGKILL);
      ::waitpid(process->pid, nullptr, 0);
      process->ended = true;
    }
    read_output(*process);
    ends.push_back(process->end);
  }
  return ends;
}

void ProcessRanks::pump(std::chrono::milliseconds limit) {
  std::vector<pollfd> sources;
  for (const auto& process : processes_) {
    sources.push_back({process.output, POLLIN, 0});
  }
  ::poll(sources.data(), sources.size(), static_cast<int>(limit.count()));
  bool asleep = true;
  for (auto& process : processes_) {
    const auto before = process.end.output.size();
    read_output(process);
    reap(process);
    asleep = asleep && process.end.output.size() == before;
  }
  // A closed pipe is always readable: without a pause an ended rank would keep this loop busy.
  if (asleep) {
    ::usleep(5000);
  }
}

void ProcessRanks::read_output(Process& process) {
  std::array<char, 65536> block{};
  pollfd source{process.output, POLLIN, 0};
  while (::poll(&source, 1, 0) > 0) {
    const auto count = ::read(process.output, block.data(), block.size());
    if (count <= 0) {
      return;
    }
    process.end.output.append(block.data(), static_cast<std::size_t>(count));
  }
}

void ProcessRanks::reap(Process& process) {
  int status = 0;
  if (process.ended || ::waitpid(process.pid, &status, WNOHANG) != process.pid) {
    return;
  }
  process.ended = true;
  if (WIFEXITED(status)) {
    process.end.exit_code = WEXITSTATUS(status);
  } else {
    process.end.signal = WTERMSIG(status);
  }
  if (launcher_ && process.end.exit_code != 0) {
    tell_others(process);
  }
}

void ProcessRanks::tell_others(const Process& process) {
  const auto& end = process.end;
  const auto how = end.signal ? core::str("was killed by signal ", *end.signal, " (", ::strsignal(*end.signal), ")")
                              : core::str("exited with code ", *end.exit_code);
  const auto line = core::str("rank ", end.rank, " ", how, "\n");
  for (const auto& other : processes_) {
    if (!other.ended) {
      [[maybe_unused]] const auto written = ::write(other.events, line.data(), line.size());
    }
  }
}

}  // namespace lockstep::test
