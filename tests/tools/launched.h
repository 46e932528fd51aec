// SPDX-License-Identifier: Apache-2.0
// A `lockstep` command under test: started, sent signals, read and waited for, all with time limits.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::test {

/// A folder of this test's own, removed afterwards.
class TempFolder {
 public:
  TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder();

  std::string path() const { return path_.string(); }

  /// Pids that actors have left here, once there are `count`; fewer where they do not appear in time.
  std::vector<pid_t> pids(std::size_t count) const;

 private:
  std::filesystem::path path_;
};

inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The process's state as the kernel has it: 'R', 'S', 'T' (stopped), 'Z' (ended, not collected); 0 where it is gone.
char state_of(pid_t pid);

/// True once none of these processes runs any more, false after `limit`.
bool all_gone(const std::vector<pid_t>& pids, std::chrono::milliseconds limit);

/// Path of a program that the build made.
std::string built(const std::string& name);

class Launched {
 public:
  struct Options {
    /// `NAME=value` to add, or `NAME` to remove.
    std::vector<std::string> environment = {};
    /// stderr goes where stdout goes.
    bool merge = false;
    /// For stdin; it is closed after that.
    std::string input = {};
  };

  /// Starts `lockstep` with these arguments.
  explicit Launched(const std::vector<std::string>& arguments) : Launched(arguments, Options()) {}
  Launched(const std::vector<std::string>& arguments, const Options& options);
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  /// Kills it where it still runs.
  ~Launched();

  pid_t pid() const { return pid_; }
  void send(int signal) const;

  /// Reads until stdout holds `text`. Fails the test after ten seconds.
  void await_output(const std::string& text);
  /// Stops reading: the launcher's next write finds no reader.
  void close_output();
  /// Reads everything and waits for the end. Fails the test, and kills, after `limit`.
  void finish(std::chrono::milliseconds limit = std::chrono::seconds(60));

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }
  /// Exit code, or 1000 + signal where the launcher itself was killed.
  int code() const { return code_; }
  /// From start to finish().
  double seconds() const { return seconds_; }

 private:
  bool read_some(std::chrono::milliseconds limit);

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
  int code_ = -1;
  double seconds_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// `run <flags> launch_actor <actions>`, the arguments of a command that starts actors as ranks.
std::vector<std::string> actors(const std::vector<std::string>& flags, const std::vector<std::string>& actions);

/// Lines of `text`, in order.
std::vector<std::string> lines_of(const std::string& text);

/// Lines that start with `prefix`, without it.
std::vector<std::string> lines_with(const std::string& text, const std::string& prefix);

}  // namespace lockstep::test
