// SPDX-License-Identifier: Apache-2.0
// Environments as values: the one the launcher was given, and the one each rank gets.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/run_options.h"

namespace lockstep::launcher {

class Environment {
 public:
  Environment() = default;
  /// From a null-ended list of `NAME=value`.
  explicit Environment(char* const* entries);

  /// The value, empty where it is set to nothing; none where it is unset.
  std::optional<std::string_view> find(std::string_view name) const;
  void set(std::string_view name, std::string_view value);
  void set_default(std::string_view name, std::string_view value);

  /// Null-ended pointers into this object, for exec.
  std::vector<char*> pointers();

 private:
  std::vector<std::string> entries_;
};

/// What distinguishes one rank of this machine from the others.
struct RankPlace {
  int local_rank = 0;
  /// Read end of the pipe that tells what became of other ranks.
  int events_fd = -1;
  /// Where the rank may leave a JSON account of its error.
  std::string error_file = {};
};

/// Rank in the whole run.
int global_rank(const RunOptions& options, int local_rank);

/// `parent` with torchrun's variables for that rank; they win over what an outer job has set.
Environment rank_environment(const Environment& parent, const RunOptions& options, const RankPlace& place);

}  // namespace lockstep::launcher
