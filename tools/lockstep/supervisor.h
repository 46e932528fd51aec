// SPDX-License-Identifier: Apache-2.0
// Starts the ranks, passes their output and signals on, and brings all to an end together. One thread, one poll loop;
// it never blocks anywhere else.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ending.h"
#include "lockstep/output_queue.h"
#include "lockstep/rank_process.h"
#include "lockstep/signals.h"
#include "lockstep/summary.h"

namespace lockstep::launcher {

class Supervisor {
 public:
  /// `lifeline` reads end-of-file once nobody waits for this run any more.
  Supervisor(const LaunchPlan& plan, const SignalGate& gate, int lifeline);

  /// Returns the launcher's exit code once no process of the run is left. Throws as RankProcess's constructor.
  int run();

 private:
  void start_ranks();
  bool is_finished() const;
  int live_ranks() const;

  void wait_once();
  int poll_timeout() const;
  std::vector<RankStream*> streams();
  void write_output();

  void collect_children();
  void on_rank_end(RankProcess& rank, int status);
  void on_failure(const RankProcess& rank);
  void on_signal(int signal);
  void pass_to_ranks(int signal);
  void end_because_of(int signal);
  void tell_to_end(int signal);
  void enforce_deadline();

  void finish_output();
  void flush();
  std::vector<RankAccount> accounts() const;
  void summarize();
  int exit_code() const;
  void say(const std::string& text);

  const LaunchPlan& plan_;
  const SignalGate& gate_;
  int lifeline_;
  UniqueFd signals_;
  TimePoint started_ = Clock::now();
  Ending ending_;
  OutputQueue output_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  /// Indices of ranks_, as their ends were seen.
  std::vector<std::size_t> ended_;
  bool childless_ = false;
  bool abandoned_ = false;
  bool output_lost_ = false;
  int interrupts_ = 0;
  /// The signal that ended this run, where no rank had failed before.
  std::optional<int> ended_by_;
};

}  // namespace lockstep::launcher
