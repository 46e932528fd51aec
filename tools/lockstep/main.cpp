// SPDX-License-Identifier: Apache-2.0
// The command `lockstep`: what it is asked for, by its first argument.
#include <iomanip>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "core/check.h"
#include "lockstep/dispatch.h"
#include "lockstep/error.h"
#include "lockstep/program.h"
#include "lockstep/run.h"
#include "lockstep/version.h"

namespace {

constexpr int usage_error = 2;

std::string description_of(const std::string& command) {
  const std::map<std::string, std::string> descriptions = {
      {"run", "Start a program as N ranks on this machine"},
      {"doctor", "Check this machine's torch, devices and network for training"},
      {"inspect", "Compare checkpoints, or show what is in one"}};
  const auto found = descriptions.find(command);
  return found == descriptions.end() ? "" : found->second;
}

// Only commands that are installed, so that the text promises nothing.
void print_help(std::ostream& out) {
  out << "Usage: lockstep <command> [arguments]\n\nCommands:\n";
  for (const auto& command : lockstep::launcher::known_commands()) {
    out << "  " << std::left << std::setw(11) << command << description_of(command) << "\n";
  }
  out << "\nOptions:\n"
         "  -h,--help  This text; `lockstep <command> --help` tells about a command\n"
         "  --version  The version\n";
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print_help(std::cerr);
    return usage_error;
  }
  const std::string& command = arguments.front();
  if (command == "-h" || command == "--help" || command == "help") {
    print_help(std::cout);
    return 0;
  }
  if (command == "--version") {
    std::cout << "lockstep " LOCKSTEP_VERSION "\n";
    return 0;
  }
  if (command.starts_with('-')) {
    lockstep::core::fail(
        "lockstep",
        {.what = "unknown option", .got = "'" + command + "'", .advice = "`lockstep --help` lists the commands"});
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (command == "run") {
    return lockstep::launcher::run(rest);
  }
  lockstep::launcher::exec_companion(command, rest);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return dispatch(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const lockstep::launcher::ProgramError& error) {
    std::cerr << error.what() << std::endl;
    return error.exit_code();
  } catch (const lockstep::InputError& error) {
    std::cerr << error.what() << std::endl;
    return usage_error;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
