// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace lockstep::bench {

/// Runs `steps` steps under torch's profiler and says which device kernels they took: a line a kernel, longest first,
/// with calls and microseconds a step and the share of the whole.
std::string kernel_table(int steps, const std::function<void()>& step);

}  // namespace lockstep::bench
