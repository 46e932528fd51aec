// SPDX-License-Identifier: Apache-2.0
#include "lockstep/run_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <ostream>

#include "core/check.h"
#include "lockstep/rank_count.h"

namespace lockstep::launcher {
namespace {

constexpr const char* where = "lockstep.run";
constexpr int most_nodes = 65536;

// Flags as they were typed. They are judged here, not by CLI11, so that all errors of Lockstep read alike.
struct Flags {
  std::string ranks = "1";
  std::string nodes = "1";
  std::string node_rank = "0";
  std::string master_addr = "127.0.0.1";
  std::string master_port = "0";
  std::string notice = "2";
  std::string grace = "10";
  bool no_tag = false;
};

class RunFormatter : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "\nUsage: lockstep run [-n N] [options] [--] program [args...]\n";
  }
};

void declare(CLI::App& app, Flags& flags) {
  app.formatter(std::make_shared<RunFormatter>());
  app.prefix_command();
  app.add_option("-n,--nproc-per-node", flags.ranks, "Ranks on this machine: a number, auto, gpu or cpu [1]")
      ->type_name("N");
  app.add_option("--nnodes", flags.nodes, "Machines; the command is started once on each [1]")->type_name("M");
  app.add_option("--node-rank", flags.node_rank, "Which machine this is, from 0 to M-1 [0]")->type_name("K");
  app.add_option("--master-addr", flags.master_addr, "Address of machine 0, where rank 0 runs [127.0.0.1]")
      ->type_name("HOST");
  app.add_option("--master-port", flags.master_port, "Port rank 0 serves; 0: a free one, on one machine only [0]")
      ->type_name("PORT");
  app.add_option("--notice", flags.notice, "When a rank fails: time for the others to end by themselves [2]")
      ->type_name("SECONDS");
  app.add_option("--grace", flags.grace, "Time between SIGTERM (or Ctrl-C) and SIGKILL [10]")->type_name("SECONDS");
  app.add_flag("--no-tag", flags.no_tag, "No `[rank] ` before each line of output");
  app.footer(
      "Ranks get torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...), and OMP_NUM_THREADS=1 where\n"
      "it is unset and N > 1. The exit code is that of the first rank that fails, 128 + signal where it was killed.\n"
      "Example: lockstep run -n 4 ./train --epochs 10");
}

std::chrono::milliseconds parse_seconds(const char* flag, const std::string& text) {
  constexpr double most = 1e6;
  double value = -1;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  core::check(code == std::errc() && stop == end && value >= 0 && value <= most, where, [&] {
    return core::Problem{core::str(flag, " is not a time"), "'" + text + "'", "seconds, 0 or more"};
  });
  return std::chrono::milliseconds(static_cast<long>(value * 1000));
}

// IPv6 addresses come with and without brackets; c10d wants them without.
std::string parse_address(const std::string& text) {
  const bool brackets = text.size() > 2 && text.front() == '[' && text.back() == ']';
  const std::string address = brackets ? text.substr(1, text.size() - 2) : text;
  const bool usable = !address.empty() && address.find_first_of(" \t[]/") == std::string::npos;
  core::check(usable, where, [&] {
    return core::Problem{"--master-addr is not an address", "'" + text + "'", "a host name or an IP address",
                         "the port is given by --master-port"};
  });
  return address;
}

void check_program(const std::vector<std::string>& program) {
  core::check(!program.empty(), where, [] {
    return core::Problem{.what = "no program to run", .expected = "lockstep run -n N program args..."};
  });
  core::check(!program.front().starts_with('-'), where, [&] {
    return core::Problem{.what = "unknown option",
                         .got = "'" + program.front() + "'",
                         .advice = "`lockstep run --help` lists the options; those of the program come after its name"};
  });
}

void check_machines(const CLI::App& app, const RunOptions& options) {
  if (options.nodes == 1) {
    return;
  }
  core::check(options.master_port != 0 && app.count("--master-addr") > 0, where, [&] {
    return core::Problem{.what = core::str("--nnodes ", options.nodes, " needs an address that all machines know"),
                         .expected = "--master-addr and --master-port, the same on every machine"};
  });
}

// Versions of CLI11 differ in whether they hand on the `--` before the program.
std::vector<std::string> program_words(const CLI::App& app) {
  auto words = app.remaining();
  if (!words.empty() && words.front() == "--") {
    words.erase(words.begin());
  }
  return words;
}

RunOptions judge(const CLI::App& app, const Flags& flags, std::optional<std::string_view> visible_devices) {
  RunOptions options;
  options.program = program_words(app);
  check_program(options.program);
  options.ranks = count_ranks(flags.ranks, visible_devices);
  options.nodes = parse_whole("--nnodes", flags.nodes, 1, most_nodes);
  options.node_rank = parse_whole("--node-rank", flags.node_rank, 0, options.nodes - 1);
  options.master_addr = parse_address(flags.master_addr);
  options.master_port = parse_whole("--master-port", flags.master_port, 0, 65535);
  options.tags = !flags.no_tag;
  options.notice = parse_seconds("--notice", flags.notice);
  options.grace = parse_seconds("--grace", flags.grace);
  check_machines(app, options);
  return options;
}

}  // namespace

std::optional<RunOptions> parse_run_options(const std::vector<std::string>& arguments,
                                            std::optional<std::string_view> visible_devices, std::ostream& out) {
  CLI::App app("Starts a program as N ranks on this machine and brings them all to an end together.");
  Flags flags;
  declare(app, flags);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    out << app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    core::fail(where, {.what = error.what(), .advice = "`lockstep run --help` lists the options"});
  }
  return judge(app, flags, visible_devices);
}

}  // namespace lockstep::launcher
