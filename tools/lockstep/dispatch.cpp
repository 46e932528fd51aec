// SPDX-License-Identifier: Apache-2.0
#include "lockstep/dispatch.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "core/check.h"
#include "lockstep/program.h"

namespace lockstep::launcher {
namespace {

constexpr std::string_view prefix = "lockstep-";

std::filesystem::path own_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
}

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

}  // namespace

std::vector<std::string> known_commands() {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(own_folder(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.find('.') == std::string::npos) {
      found.push_back(name.substr(prefix.size()));
    }
  }
  std::sort(found.begin(), found.end());
  found.insert(found.begin(), "run");
  return found;
}

void exec_companion(const std::string& command, const std::vector<std::string>& arguments) {
  const std::string path = (own_folder() / (std::string(prefix) + command)).string();
  std::vector<std::string> words{path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> list;
  for (auto& word : words) {
    list.push_back(word.data());
  }
  list.push_back(nullptr);
  if (command.find('/') == std::string::npos) {
    ::execv(path.c_str(), list.data());
  }
  if (errno == ENOENT || command.find('/') != std::string::npos) {
    throw ProgramError(127, core::message("lockstep", {.what = "unknown command",
                                                       .got = "'" + command + "'",
                                                       .expected = "one of: " + listed(known_commands()),
                                                       .advice = "to start a program, write lockstep run " + command}));
  }
  fail_exec(path, errno);
}

}  // namespace lockstep::launcher
