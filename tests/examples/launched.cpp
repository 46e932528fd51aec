// SPDX-License-Identifier: Apache-2.0
#include "examples/launched.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <sstream>

#include "core/env.h"

namespace examples {
namespace {

std::map<std::string, std::string> result_of(const std::string& output) {
  std::map<std::string, std::string> result;
  const std::string mark = "RESULT ";
  const auto start = output.rfind(mark);
  if (start == std::string::npos) {
    return result;
  }
  const auto first = start + mark.size();
  std::istringstream pairs(output.substr(first, output.find('\n', first) - first));
  for (std::string pair; pairs >> pair;) {
    const auto equals = pair.find('=');
    result[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return result;
}

}  // namespace

Launched launch(int ranks, const std::string& command) {
  const auto bin = lockstep::core::env("LOCKSTEP_BIN").value();
  const auto line = bin + "/lockstep run -n " + std::to_string(ranks) + " " + bin + "/" + command + " 2>&1";
  Launched run;
  auto* pipe = popen(line.c_str(), "r");
  std::array<char, 4096> bytes{};
  while (const auto count = fread(bytes.data(), 1, bytes.size(), pipe)) {
    run.output.append(bytes.data(), count);
  }
  const int status = pclose(pipe);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  run.result = result_of(run.output);
  return run;
}

}  // namespace examples
