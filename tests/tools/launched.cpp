// SPDX-License-Identifier: Apache-2.0
#include "tools/launched.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/env.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

bool runs(pid_t pid) {
  const char state = state_of(pid);
  return state != 0 && state != 'Z' && state != 'X';
}

std::vector<std::string> changed_environment(const std::vector<std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto same_name = [&](const std::string& change) {
      return text.starts_with(change.substr(0, change.find('=')) + "=");
    };
    if (std::none_of(changes.begin(), changes.end(), same_name)) {
      result.push_back(text);
    }
  }
  for (const auto& change : changes) {
    if (change.find('=') != std::string::npos) {
      result.push_back(change);
    }
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (auto& text : texts) {
    list.push_back(text.data());
  }
  list.push_back(nullptr);
  return list;
}

bool read_block(int& fd, std::string& text) {
  std::array<char, 65536> block;
  const auto size = ::read(fd, block.data(), block.size());
  if (size > 0) {
    text.append(block.data(), static_cast<std::size_t>(size));
    return true;
  }
  ::close(fd);
  fd = -1;
  return false;
}

}  // namespace

TempFolder::TempFolder() {
  std::string name = std::filesystem::temp_directory_path().string() + "/launch_test_XXXXXX";
  path_ = ::mkdtemp(name.data());
}

TempFolder::~TempFolder() {
  std::filesystem::remove_all(path_);
}

std::vector<pid_t> TempFolder::pids(std::size_t count) const {
  const auto deadline = steady_clock::now() + std::chrono::seconds(10);
  std::vector<pid_t> found;
  do {
    found.clear();
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      found.push_back(std::stoi(entry.path().filename().string()));
    }
    std::this_thread::sleep_for(milliseconds(5));
  } while (found.size() < count && steady_clock::now() < deadline);
  return found;
}

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto bracket = text.rfind(')');
  return bracket == std::string::npos ? char{0} : text.at(bracket + 2);
}

bool all_gone(const std::vector<pid_t>& pids, milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  while (std::any_of(pids.begin(), pids.end(), runs)) {
    if (steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

std::string built(const std::string& name) {
  return core::env("LOCKSTEP_BIN").value_or(".") + "/" + name;
}

Launched::Launched(const std::vector<std::string>& arguments, const Options& options) {
  std::vector<std::string> words{built("lockstep")};
  words.insert(words.end(), arguments.begin(), arguments.end());
  auto environment = changed_environment(options.environment);
  const auto word_list = pointers(words);
  const auto environment_list = pointers(environment);
  int in[2], out[2], err[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("no pipes left");
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(options.merge ? out[1] : err[1], STDERR_FILENO);
    ::execve(word_list[0], word_list.data(), environment_list.data());
    ::_exit(98);
  }
  [[maybe_unused]] const auto sent = ::write(in[1], options.input.data(), options.input.size());
  for (const int fd : {in[0], in[1], out[1], err[1]}) {
    ::close(fd);
  }
  out_fd_ = out[0];
  err_fd_ = err[0];
}

Launched::~Launched() {
  if (code_ < 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(out_fd_);
  ::close(err_fd_);
}

void Launched::send(int signal) const {
  ::kill(pid_, signal);
}

bool Launched::read_some(milliseconds limit) {
  pollfd fds[] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  ::poll(fds, 2, static_cast<int>(limit.count()));
  if (fds[0].revents != 0) {
    read_block(out_fd_, out_);
  }
  if (fds[1].revents != 0) {
    read_block(err_fd_, err_);
  }
  return out_fd_ >= 0 || err_fd_ >= 0;
}

void Launched::await_output(const std::string& text) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(10);
  while (out_.find(text) == std::string::npos) {
    const bool more = read_some(milliseconds(100));
    ASSERT_TRUE(more && steady_clock::now() < deadline) << "no '" << text << "' in\n" << out_ << err_;
  }
}

void Launched::close_output() {
  ::close(out_fd_);
  out_fd_ = -1;
}

void Launched::finish(milliseconds limit) {
  const auto deadline = start_ + limit;
  while (read_some(milliseconds(100))) {
    if (steady_clock::now() > deadline) {
      ADD_FAILURE() << "the launcher has not ended in time; it said\n" << out_.substr(0, 2000) << err_;
      send(SIGKILL);
      break;
    }
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  seconds_ = std::chrono::duration<double>(steady_clock::now() - start_).count();
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

std::vector<std::string> actors(const std::vector<std::string>& flags, const std::vector<std::string>& actions) {
  std::vector<std::string> words{"run"};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back(built("launch_actor"));
  words.insert(words.end(), actions.begin(), actions.end());
  return words;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    result.push_back(line);
  }
  return result;
}

std::vector<std::string> lines_with(const std::string& text, const std::string& prefix) {
  std::vector<std::string> result;
  for (const auto& line : lines_of(text)) {
    if (line.starts_with(prefix)) {
      result.push_back(line.substr(prefix.size()));
    }
  }
  return result;
}

}  // namespace lockstep::test
