// SPDX-License-Identifier: Apache-2.0
// One collective call: what is compared between ranks, and how it is named in texts.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "lockstep/comm/world.h"

namespace lockstep::comm {

enum class Operation : std::uint8_t { AllReduce, Broadcast, AllGather, ReduceScatter, Barrier };

const char* name_of(Operation operation);
const char* name_of(ReduceOp op);

struct Call {
  Operation operation = Operation::Barrier;
  at::ScalarType dtype = at::kByte;
  std::int64_t elements = 0;
  ReduceOp op = ReduceOp::Sum;
  int root = 0;
  CallLabel label = {};
  c10::Device device = c10::kCPU;
  /// Counted from 1 in each group.
  std::uint64_t number = 0;

  /// Equal on all ranks for calls that belong together; the name, the device and the number are left out.
  std::uint32_t signature() const;

  /// E.g. `all_reduce #21 'bucket 3' (1000 Float, sum, tag 20)`
  std::string describe() const;
};

}  // namespace lockstep::comm
