// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::comm {

/// Sets what c10d and the resolver read from the environment and Lockstep needs otherwise, unless the user has set it.
/// Once a process, before the first use of c10d.
void set_c10d_defaults();

}  // namespace lockstep::comm
