// SPDX-License-Identifier: Apache-2.0
#include "lockstep/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace lockstep::launcher {
namespace {

// 0, or why the file cannot be executed, as an errno value.
int obstacle(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    return errno;
  }
  if (S_ISDIR(info.st_mode)) {
    return EISDIR;
  }
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

}  // namespace

void fail_exec(const std::string& name, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  core::Problem problem{.what = missing ? "program not found" : "program cannot be executed",
                        .got = core::str("'", name, "' (", std::strerror(error), ")")};
  if (missing && name.find('/') == std::string::npos) {
    problem.expected = "a program in one of the folders of PATH";
    problem.advice = core::str("write ./", name, " for one in the current folder");
  } else if (error == EACCES) {
    problem.advice = "chmod +x makes a file executable";
  } else if (error == ENOEXEC) {
    problem.advice = "a script starts with a line such as #!/bin/sh";
  }
  throw ProgramError(missing ? 127 : 126, core::message("lockstep.run", problem));
}

std::string find_program(const std::string& name, std::string_view search_path) {
  if (name.find('/') != std::string::npos) {
    if (const int error = obstacle(name)) {
      fail_exec(name, error);
    }
    return name;
  }
  int reason = ENOENT;
  while (!name.empty() && !search_path.empty()) {
    const auto colon = std::min(search_path.find(':'), search_path.size());
    const std::string folder(colon == 0 ? "." : search_path.substr(0, colon));
    search_path.remove_prefix(std::min(colon + 1, search_path.size()));
    const std::string path = folder + "/" + name;
    const int error = obstacle(path);
    if (error == 0) {
      return path;
    }
    // As shells do: a file that may not be executed is only the answer where no later folder has a better one.
    reason = error == EACCES ? error : reason;
  }
  fail_exec(name, reason);
}

}  // namespace lockstep::launcher
