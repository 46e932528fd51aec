// SPDX-License-Identifier: Apache-2.0
#include "comm/slurm_nodes.h"

#include <cstdio>
#include <sstream>

namespace lockstep::comm {

std::string first_slurm_node(const std::string& list) {
  const auto open = list.find_first_of("[,");
  if (open == std::string::npos || list[open] == ',') {
    return list.substr(0, open);
  }
  const auto number_end = list.find_first_of("-,]", open);
  if (number_end == std::string::npos) {
    return {};
  }
  // A name may go on after its brackets, and may have several: rack[1-2]node[3-4].
  const auto close = list.find(']', open);
  const auto rest = close == std::string::npos ? std::string() : list.substr(close + 1);
  return list.substr(0, open) + list.substr(open + 1, number_end - open - 1) + first_slurm_node(rest);
}

int slurm_tasks_on(const std::string& list, int node) {
  std::istringstream parts(list);
  std::string part;
  while (std::getline(parts, part, ',')) {
    int tasks = -1;
    int nodes = 1;
    if (std::sscanf(part.c_str(), "%d(x%d)", &tasks, &nodes) < 1) {
      return -1;
    }
    if (node < nodes) {
      return tasks;
    }
    node -= nodes;
  }
  return -1;
}

}  // namespace lockstep::comm
