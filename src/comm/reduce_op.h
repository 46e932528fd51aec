// SPDX-License-Identifier: Apache-2.0
// Lockstep's reduce operations in c10d's words.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "comm/call.h"

namespace lockstep::comm {

/// Average is a sum here; whoever asked for it divides. The sum of booleans is "any": adding their bytes would leave
/// values that are neither true nor false.
inline c10d::ReduceOp c10d_reduce_op(const Call& call) {
  switch (call.op) {
    case ReduceOp::Min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::Max:
      return c10d::ReduceOp::MAX;
    default:
      return call.dtype == at::kBool ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
  }
}

}  // namespace lockstep::comm
