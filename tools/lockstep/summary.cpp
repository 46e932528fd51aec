// SPDX-License-Identifier: Apache-2.0
#include "lockstep/summary.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <sstream>

#include "core/check.h"

namespace lockstep::launcher {
namespace {

std::string indented(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    result += "    " + line + "\n";
  }
  return result;
}

std::string name_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += core::str(i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

std::string fate(const RankAccount& account) {
  return describe_end(account.end.status) + (account.end.was_told ? " after being told to end" : "");
}

// Ranks that ended alike share a line.
std::string fates(const std::vector<RankAccount>& accounts, const RankAccount* left_out) {
  std::map<std::string, std::vector<int>> groups;
  for (const auto& account : accounts) {
    if (&account != left_out) {
      groups[fate(account)].push_back(account.rank);
    }
  }
  std::string text;
  for (const auto& [what, ranks] : groups) {
    text += "  " + name_ranks(ranks) + ": " + what + "\n";
  }
  return text;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}

}  // namespace

const RankAccount* root_cause(const std::vector<RankAccount>& in_order) {
  const RankAccount* root = nullptr;
  for (const auto& account : in_order) {
    if (!account.end.failed()) {
      continue;
    }
    const bool earlier =
        root != nullptr && account.timestamp && root->timestamp && *account.timestamp < *root->timestamp;
    if (root == nullptr || earlier) {
      root = &account;
    }
  }
  return root;
}

std::string failure_summary(const std::vector<RankAccount>& in_order, const RankAccount& root,
                            const std::string& host) {
  const std::string where = core::str(describe_end_of(core::str("rank ", root.rank), root.end.status), "; pid ",
                                      root.pid, " on host ", host, ", after ", seconds_text(root.end.seconds));
  std::string text = core::message("lockstep.run", {.what = where}) + "\n";
  text += root.words.empty() ? "  it left no words on stderr\n" : "  its last words:\n" + indented(root.words);
  if (WIFSIGNALED(root.end.status) && WTERMSIG(root.end.status) == SIGKILL) {
    text += "  a SIGKILL that nobody sent is usually the kernel's when memory runs out; dmesg tells\n";
  }
  return text + fates(in_order, &root);
}

std::string signal_summary(const std::vector<RankAccount>& in_order, int signal) {
  return core::message("lockstep.run", {.what = "ended by " + describe_signal(signal)}) + "\n" +
         fates(in_order, nullptr);
}

}  // namespace lockstep::launcher
