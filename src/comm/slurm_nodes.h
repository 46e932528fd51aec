// SPDX-License-Identifier: Apache-2.0
// SLURM's short forms.
#pragma once

#include <string>

namespace lockstep::comm {

/// First name of a node list: `gpu[07-10,12],login1` gives `gpu07`. Empty for an empty list.
std::string first_slurm_node(const std::string& list);

/// Tasks on node number `node` of a list like `4(x2),3`, which gives 4 for nodes 0 and 1, and 3 for node 2. -1 where
/// the list does not say.
int slurm_tasks_on(const std::string& list, int node);

}  // namespace lockstep::comm
