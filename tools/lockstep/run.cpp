// SPDX-License-Identifier: Apache-2.0
#include "lockstep/run.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>

#include "core/check.h"
#include "lockstep/children.h"
#include "lockstep/guardian.h"
#include "lockstep/port_lease.h"
#include "lockstep/program.h"
#include "lockstep/supervisor.h"

namespace lockstep::launcher {
namespace {

// A folder for this run alone. It is the guardian's and goes with it; the supervisor removes it where it is left alone.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& parent) : path_(parent + "/lockstep_XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) {
      fail_system("cannot make a folder in " + parent, "set TMPDIR to a folder that can be written");
    }
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() { remove(); }

  void remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string temporary_folder(const Environment& environment) {
  const auto given = environment.find("TMPDIR");
  return given && !given->empty() ? std::string(*given) : "/tmp";
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

void warn_of_loopback(const RunOptions& options) {
  if (options.nodes > 1 && is_loopback(options.master_addr)) {
    std::cerr << core::message("lockstep.run", {.what = "--master-addr is a loopback address",
                                                .got = "'" + options.master_addr + "'",
                                                .advice = "ranks on other machines cannot reach it"})
              << std::endl;
  }
}

int supervise(const LaunchPlan& plan, const SignalGate& gate, int lifeline) {
  try {
    return Supervisor(plan, gate, lifeline).run();
  } catch (const ProgramError& error) {
    kill_descendants(std::chrono::seconds(10));
    std::cerr << error.what() << std::endl;
    return error.exit_code();
  }
}

}  // namespace

int run(const std::vector<std::string>& arguments) {
  LaunchPlan plan;
  plan.environment = Environment(environ);
  const auto options = parse_run_options(arguments, plan.environment.find("CUDA_VISIBLE_DEVICES"), std::cout);
  if (!options) {
    return 0;
  }
  plan.options = *options;
  plan.path = find_program(options->program.front(), plan.environment.find("PATH").value_or("/usr/bin:/bin"));
  warn_of_loopback(*options);
  fill_standard_fds();
  std::optional<PortLease> lease;
  if (options->node_rank == 0) {
    lease.emplace(options->master_port);
    plan.options.master_port = lease->port();
  }
  const ScratchFolder scratch(temporary_folder(plan.environment));
  plan.scratch = scratch.path();
  const SignalGate gate;
  return run_guarded(gate, [&](int lifeline) {
    const int code = supervise(plan, gate, lifeline);
    scratch.remove();
    return code;
  });
}

}  // namespace lockstep::launcher
