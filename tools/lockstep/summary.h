// SPDX-License-Identifier: Apache-2.0
// What is said on stderr when a run did not end well.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/rank_process.h"

namespace lockstep::launcher {

/// One rank, as far as the summary is concerned.
struct RankAccount {
  int rank = 0;
  pid_t pid = 0;
  RankEnd end = {};
  /// Its error file's text, else the end of its stderr.
  std::string words = {};
  /// When it failed, in its own account.
  std::optional<double> timestamp = std::nullopt;
};

/// The failure the others followed from, or nothing where no rank failed: the one whose end was seen first, unless
/// both ranks said when they failed. `in_order` is the order in which ends were seen.
const RankAccount* root_cause(const std::vector<RankAccount>& in_order);

/// Several lines, each with its line end: the root cause with its words, then what became of the others.
std::string failure_summary(const std::vector<RankAccount>& in_order, const RankAccount& root, const std::string& host);

/// The same for a run that `signal` ended.
std::string signal_summary(const std::vector<RankAccount>& in_order, int signal);

}  // namespace lockstep::launcher
