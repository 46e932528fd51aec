// SPDX-License-Identifier: Apache-2.0
// Where every gradient lies: a pure function of the model and two limits, the same on every rank. Tested without
// tensors; nothing here allocates memory for data.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::core {

/// What the layout needs to know of a tensor.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;

  std::int64_t numel() const;
};

/// Limits in bytes. A bucket closes once it has reached its limit, so it may exceed it by one tensor.
struct BucketLimits {
  std::int64_t first = 1 << 20;
  std::int64_t rest = 25 << 20;
};

/// One arena: all tensors of one (dtype, device).
struct Group {
  at::ScalarType dtype;
  c10::Device device;
  std::int64_t numel = 0;
};

/// Place of one tensor: elements [offset, offset + numel) of its group's arena.
struct Slot {
  int group = 0;
  int bucket = 0;
  std::int64_t offset = 0;
  std::int64_t numel = 0;
};

/// Elements [begin, end) of a group's arena that are reduced together; padding between tensors included.
struct Bucket {
  int group = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<int> tensors;  // indices into the list of specs, in arena order
};

struct Layout {
  std::vector<Group> groups;
  std::vector<Slot> slots;      // one for each spec, in the order of the specs
  std::vector<Bucket> buckets;  // in the order in which they are reduced
};

/// Tensors are laid out in reverse order, since the last registered are usually the first to get a gradient. Every
/// tensor starts at a multiple of kAlignment bytes. One open bucket per group; the first bucket to close took `first`
/// as its limit, the others `rest`. Empty tensors take no space but belong to a bucket.
Layout plan_layout(const std::vector<TensorSpec>& specs, const BucketLimits& limits);

/// Keeps vector loads of any width aligned, and slices of neighbours off each other's cache line.
inline constexpr std::int64_t kAlignment = 128;

}  // namespace lockstep::core
