// SPDX-License-Identifier: Apache-2.0
// One rank: its process, the pipes to it, and what became of it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/environment.h"
#include "lockstep/fd.h"
#include "lockstep/rank_stream.h"
#include "lockstep/run_options.h"
#include "lockstep/signals.h"

namespace lockstep::launcher {

/// What all ranks share when they start.
struct LaunchPlan {
  RunOptions options;
  /// The file that options.program[0] stands for.
  std::string path;
  Environment environment;
  /// Folder for the ranks' error files.
  std::string scratch;
};

/// How a rank ended.
struct RankEnd {
  /// From waitpid.
  int status = 0;
  /// Since the start of the run.
  double seconds = 0;
  /// It had been sent a signal that ends programs.
  bool was_told = false;

  bool failed() const { return status != 0 && !was_told; }
};

class RankProcess {
 public:
  /// Starts the program in a session and process group of its own. Returns once it runs. Throws ProgramError where it
  /// cannot be executed, Error where the system is out of processes or descriptors.
  RankProcess(const LaunchPlan& plan, const SignalGate& gate, int local_rank);

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  const std::string& error_file() const { return error_file_; }
  RankStream& out() { return out_; }
  RankStream& err() { return err_; }
  const RankStream& err() const { return err_; }

  const std::optional<RankEnd>& end() const { return end_; }
  void set_end(const RankEnd& end);

  /// Puts a line into this rank's events pipe. Never blocks: a rank that reads nothing misses it at most.
  void tell(const std::string& line) const;

 private:
  int rank_;
  pid_t pid_ = -1;
  std::string error_file_;
  UniqueFd events_;
  RankStream out_;
  RankStream err_;
  std::optional<RankEnd> end_;

  struct Pipes;
  RankProcess(const LaunchPlan& plan, const SignalGate& gate, int local_rank, Pipes pipes);
};

}  // namespace lockstep::launcher
