// SPDX-License-Identifier: Apache-2.0
// What is compared between ranks: named pieces of training state.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/replica/replica_check.h"

namespace lockstep::replica {

struct Entry {
  StateKind kind;
  std::string name;
  /// The live tensor; for a value that lives on the host, a copy of it on the CPU.
  at::Tensor tensor;
  /// For such a value: puts a new one in its place.
  std::function<void(const at::Tensor&)> put = {};
};

using Entries = std::vector<Entry>;

}  // namespace lockstep::replica
