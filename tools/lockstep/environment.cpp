// SPDX-License-Identifier: Apache-2.0
#include "lockstep/environment.h"

#include <algorithm>

namespace lockstep::launcher {
namespace {

bool is_entry_of(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

}  // namespace

Environment::Environment(char* const* entries) {
  for (; entries != nullptr && *entries != nullptr; ++entries) {
    entries_.emplace_back(*entries);
  }
}

std::optional<std::string_view> Environment::find(std::string_view name) const {
  for (const std::string_view entry : entries_) {
    if (is_entry_of(entry, name)) {
      return entry.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

void Environment::set(std::string_view name, std::string_view value) {
  std::erase_if(entries_, [&](const std::string& entry) { return is_entry_of(entry, name); });
  entries_.push_back(std::string(name) + "=" + std::string(value));
}

void Environment::set_default(std::string_view name, std::string_view value) {
  if (!find(name)) {
    set(name, value);
  }
}

std::vector<char*> Environment::pointers() {
  std::vector<char*> list;
  for (auto& entry : entries_) {
    list.push_back(entry.data());
  }
  list.push_back(nullptr);
  return list;
}

int global_rank(const RunOptions& options, int local_rank) {
  return options.node_rank * options.ranks + local_rank;
}

Environment rank_environment(const Environment& parent, const RunOptions& options, const RankPlace& place) {
  Environment result = parent;
  const auto number = [&](std::string_view name, int value) { result.set(name, std::to_string(value)); };
  const int rank = global_rank(options, place.local_rank);
  const int size = options.nodes * options.ranks;
  number("RANK", rank);
  number("LOCAL_RANK", place.local_rank);
  number("WORLD_SIZE", size);
  number("LOCAL_WORLD_SIZE", options.ranks);
  number("GROUP_RANK", options.node_rank);
  number("GROUP_WORLD_SIZE", options.nodes);
  number("ROLE_RANK", rank);
  number("ROLE_WORLD_SIZE", size);
  result.set("ROLE_NAME", "default");
  result.set("MASTER_ADDR", options.master_addr);
  number("MASTER_PORT", options.master_port);
  number("TORCHELASTIC_RESTART_COUNT", 0);
  number("TORCHELASTIC_MAX_RESTARTS", 0);
  result.set("TORCHELASTIC_RUN_ID", "none");
  result.set("TORCHELASTIC_USE_AGENT_STORE", "False");
  result.set("TORCHELASTIC_ERROR_FILE", place.error_file);
  result.set_default("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (options.ranks > 1) {
    result.set_default("OMP_NUM_THREADS", "1");
  }
  number("LOCKSTEP_EVENTS_FD", place.events_fd);
  return result;
}

}  // namespace lockstep::launcher
