// SPDX-License-Identifier: Apache-2.0
// What can be seen to be wrong with a collective call on the rank that makes it. All throw InputError.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/call.h"

namespace lockstep::comm {

/// Where a call is made: what its tensors have to fit.
struct Place {
  int rank = 0;
  int size = 1;
  c10::Device device = c10::kCPU;
  bool takes_cpu = true;
};

/// For operations in place: one block of memory without gaps, in whatever order of dimensions.
void check_dense(const at::Tensor& tensor, const Call& call, const Place& place);
void check_contiguous(const at::Tensor& tensor, const char* which, const Call& call, const Place& place);
/// That `op` is defined for the dtype.
void check_reducible(at::ScalarType dtype, const Call& call);
void check_root(const Call& call, const Place& place);
/// `whole` has place.size times `part`'s elements, and they share memory only where `part` is this rank's part of it.
void check_parts(const at::Tensor& whole, const at::Tensor& part, const Call& call, const Place& place);

}  // namespace lockstep::comm
