// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, to be killed, stopped and listened to. A rank runs a function of the test's own file:
//
//   int train(World& world) { ...; return 0; }
//   const test::RankProgram kTrain("train", train);
//
//   TEST(Faults, killed_rank) {
//     test::ProcessRanks ranks({.program = "train", .size = 4});
//     ranks.await(2, "step 20");
//     ranks.signal(1, SIGKILL);
//     for (const auto& end : ranks.finish(15s)) { ... }
//   }
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"

namespace lockstep::test {

/// Makes `body` known under `name` to processes started by ProcessRanks. It runs inside run_main.
class RankProgram {
 public:
  RankProgram(const char* name, int (*body)(World& world));
};

/// For main: the exit code of the rank program that the arguments ask for, or nothing if they ask for none.
std::optional<int> run_rank_program(int argc, char** argv);

/// Prints a line to stderr at once, in one piece.
void say(const std::string& line);

struct RankEnd {
  int rank = 0;
  /// One of them is set: how the process ended by itself.
  std::optional<int> exit_code;
  std::optional<int> signal;
  /// It had to be killed when the time was over.
  bool hung = false;
  /// All it wrote to stdout and stderr.
  std::string output;

  bool said(const std::string& text) const { return output.find(text) != std::string::npos; }
};

class ProcessRanks {
 public:
  struct Options {
    std::string program;
    int size = 2;
    /// Beyond the rank variables and the short timeouts that are always set.
    std::map<std::string, std::string> environment = {};
    /// Tell the ranks what became of the others, as `lockstep run` does.
    bool launcher = false;
  };

  explicit ProcessRanks(const Options& options);
  /// Kills and reaps what still runs.
  ~ProcessRanks();
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  /// Waits until the rank has written this text. Throws after the limit, or if the rank ends without it.
  void await(int rank, const std::string& text, std::chrono::milliseconds limit = std::chrono::seconds(60));

  void signal(int rank, int number);

  /// Waits for all ranks, or only for those in `who`; kills them when the limit is over. In rank order.
  std::vector<RankEnd> finish(std::chrono::milliseconds limit, const std::vector<int>& who = {});

 private:
  struct Process {
    pid_t pid = -1;
    int output = -1;
    int events = -1;
    bool ended = false;
    RankEnd end;
  };

  Process start(int rank, const Options& options, int port);
  void pump(std::chrono::milliseconds limit);
  void read_output(Process& process);
  void reap(Process& process);
  void tell_others(const Process& process);

  const bool launcher_;
  std::vector<Process> processes_;
};

/// A TCP port of 127.0.0.1 that was free a moment ago.
int free_port();

}  // namespace lockstep::test
