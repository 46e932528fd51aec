// SPDX-License-Identifier: Apache-2.0
// A rank for the launcher's tests. Each argument is an action, `[rank:]verb[=value]`; they are done in order, those
// with a rank before them only by that rank.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "(unset)" : value;
}

void say(const std::string& text) {
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void sleep_for(const std::string& seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::stod(seconds));
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

volatile std::sig_atomic_t last_signal = 0;

void remember(int signal) {
  last_signal = signal;
}

void write_pid(const std::string& folder) {
  std::ofstream(folder + "/" + std::to_string(::getpid())) << "here\n";
}

// Starts a process that lives for a minute and has its pid in `folder`; its output goes where the rank's goes.
void start_child(const std::string& folder, bool own_session) {
  int ready[2];
  if (::pipe(ready) != 0 || ::fork() != 0) {
    ::close(ready[1]);
    char byte;
    while (::read(ready[0], &byte, 1) < 0 && errno == EINTR) {
    }
    return;
  }
  if (own_session) {
    ::setsid();
    std::signal(SIGTERM, SIG_IGN);
  }
  write_pid(folder);
  ::close(ready[1]);
  ::close(ready[0]);
  sleep_for("60");
  ::_exit(0);
}

// Lines of different lengths on both streams: "<stream> <number> xxx".
void flood(int lines) {
  for (int i = 0; i < lines; ++i) {
    const std::string tail(static_cast<std::size_t>(i * 7 % 301), 'x');
    std::fprintf(stdout, "out %d %s\n", i, tail.c_str());
    std::fprintf(stderr, "err %d %s\n", i, tail.c_str());
  }
  std::fflush(stdout);
}

void read_events(const std::string& lines) {
  const int fd = std::atoi(variable("LOCKSTEP_EVENTS_FD").c_str());
  std::string text;
  char byte;
  for (int left = std::stoi(lines); left > 0 && ::read(fd, &byte, 1) == 1;) {
    text += byte;
    left -= byte == '\n' ? 1 : 0;
  }
  std::fputs(("heard " + text).c_str(), stdout);
  std::fflush(stdout);
}

// What rank 0's store does with the port it was given, on all addresses or on the loopback one only.
void serve(const std::string& address) {
  const bool loopback = address == "loopback";
  const int fd = ::socket(loopback ? AF_INET : AF_INET6, SOCK_STREAM, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const auto port = htons(static_cast<std::uint16_t>(std::atoi(variable("MASTER_PORT").c_str())));
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = port;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = port;
  const int bound = loopback ? ::bind(fd, reinterpret_cast<sockaddr*>(&v4), sizeof(v4))
                             : ::bind(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6));
  say(bound == 0 && ::listen(fd, 8) == 0 ? "serving" : std::string("cannot serve: ") + std::strerror(errno));
}

void print_environment() {
  for (const char* name : {"RANK",
                           "LOCAL_RANK",
                           "WORLD_SIZE",
                           "LOCAL_WORLD_SIZE",
                           "GROUP_RANK",
                           "GROUP_WORLD_SIZE",
                           "ROLE_RANK",
                           "ROLE_WORLD_SIZE",
                           "ROLE_NAME",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_RESTART_COUNT",
                           "TORCHELASTIC_MAX_RESTARTS",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCHELASTIC_ERROR_FILE",
                           "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                           "OMP_NUM_THREADS",
                           "LOCKSTEP_EVENTS_FD",
                           "KEPT"}) {
    say(std::string(name) + "=" + variable(name));
  }
}

// Waits until remembered signal arrives; says which.
void await_signal(const std::string& seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::stod(seconds));
  while (last_signal == 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  say("got signal " + std::to_string(last_signal));
  last_signal = 0;
}

void print_signal_state() {
  sigset_t mask;
  ::sigprocmask(SIG_BLOCK, nullptr, &mask);
  int blocked = 0;
  for (int signal = 1; signal < 32; ++signal) {
    blocked += sigismember(&mask, signal);
  }
  struct sigaction pipe;
  ::sigaction(SIGPIPE, nullptr, &pipe);
  say("blocked " + std::to_string(blocked) + (pipe.sa_handler == SIG_DFL ? " SIGPIPE default" : " SIGPIPE changed"));
}

void kill_self(const std::string& signal) {
  ::kill(::getpid(), std::stoi(signal));
  sleep_for("10");
}

using Verb = std::function<void(const std::string&)>;

std::map<std::string, Verb> verbs() {
  return {
      {"out", say},
      {"raw", [](const std::string& text) { std::fputs(text.c_str(), stdout), std::fflush(stdout); }},
      {"err", [](const std::string& text) { std::fputs((text + "\n").c_str(), stderr); }},
      {"env", [](const std::string&) { print_environment(); }},
      {"state", [](const std::string&) { print_signal_state(); }},
      {"exit", [](const std::string& code) { std::exit(std::stoi(code)); }},
      {"kill", kill_self},
      {"ignore", [](const std::string& signal) { std::signal(std::stoi(signal), SIG_IGN); }},
      {"remember", [](const std::string& signal) { std::signal(std::stoi(signal), remember); }},
      {"await", await_signal},
      {"sleep", sleep_for},
      {"flood", [](const std::string& lines) { flood(std::stoi(lines)); }},
      {"long", [](const std::string& size) { say(std::string(std::stoul(size), 'y')); }},
      {"events", read_events},
      {"serve", serve},
      {"pid", write_pid},
      {"child", [](const std::string& folder) { start_child(folder, false); }},
      {"daemon", [](const std::string& folder) { start_child(folder, true); }},
      {"report", [](const std::string& text) { std::ofstream(variable("TORCHELASTIC_ERROR_FILE")) << text; }},
      {"stdin",
       [](const std::string&) {
         char block[64];
         const auto size = ::read(STDIN_FILENO, block, sizeof(block));
         say("read " + std::string(block, size > 0 ? static_cast<std::size_t>(size) : 0));
       }},
  };
}

void perform(const std::map<std::string, Verb>& known, std::string action) {
  const auto equals = action.find('=');
  const auto colon = action.find(':');
  if (colon < equals) {
    if (action.substr(0, colon) != variable("RANK")) {
      return;
    }
    action.erase(0, colon + 1);
  }
  const auto split = std::min(action.find('='), action.size());
  const auto verb = known.find(action.substr(0, split));
  if (verb == known.end()) {
    std::fprintf(stderr, "unknown action %s\n", action.c_str());
    std::exit(99);
  }
  verb->second(split < action.size() ? action.substr(split + 1) : "");
}

}  // namespace

int main(int argc, char** argv) {
  const auto known = verbs();
  for (int i = 1; i < argc; ++i) {
    perform(known, argv[i]);
  }
}
