// SPDX-License-Identifier: Apache-2.0
// The command line of `lockstep run`.
#pragma once

#include <chrono>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

struct RunOptions {
  /// Ranks on this machine.
  int ranks = 1;
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  /// 0: a free one is chosen, which only one machine alone can do.
  int master_port = 0;
  /// Puts `[rank] ` before each line of output.
  bool tags = true;
  /// After a failure, for the other ranks to end by themselves before they are sent SIGTERM.
  std::chrono::milliseconds notice = std::chrono::seconds(2);
  /// Between a signal that ends programs and SIGKILL.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  /// Program and its arguments.
  std::vector<std::string> program = {};
};

/// Nothing where only help was asked for, which then is on `out`. Everything after the program's name is the program's.
/// `visible_devices` is CUDA_VISIBLE_DEVICES, for `-n gpu`. Throws InputError.
std::optional<RunOptions> parse_run_options(const std::vector<std::string>& arguments,
                                            std::optional<std::string_view> visible_devices, std::ostream& out);

}  // namespace lockstep::launcher
