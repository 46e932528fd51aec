// SPDX-License-Identifier: Apache-2.0
// When may a bucket be sent? Counting only; no tensors, no communication.
//
// A parameter fires once per backward pass that reaches it, and with re-entrant passes several times within the
// outermost one. A bucket sent after the first of them would miss the rest, so a parameter counts as ready once it has
// fired as often as it ever has. The first pass teaches the counts and sends everything at its end.
// Buckets leave in index order on every rank, whatever order gradients become ready in; when they leave may differ.
#pragma once

#include <vector>

#include "core/layout.h"

namespace lockstep::ddp {

class BucketQueue {
 public:
  BucketQueue(const core::Layout& layout, bool overlap);

  /// Forgets the current pass.
  void begin();

  /// Notes a gradient for tensor `index`. False where its bucket has been sent: the gradient comes too late.
  [[nodiscard]] bool fired(int index);

  /// The next bucket that may be sent now, or -1. It counts as sent then.
  int pop_ready();
  /// The next bucket not sent yet, ready or not, or -1. For the end of a pass.
  int pop_any();

  int fires(int index) const { return fires_[static_cast<std::size_t>(index)]; }
  int expected(int index) const { return expected_[static_cast<std::size_t>(index)]; }

  /// Ends a pass that ran to its end: its counts are learnt from.
  void learn();

 private:
  std::vector<int> bucket_of_;
  std::vector<int> tensors_in_;  // per bucket
  std::vector<int> fires_;       // per tensor, this pass
  std::vector<int> expected_;    // per tensor, the most of any pass, at least one
  std::vector<int> waiting_;     // per bucket: tensors that are not ready
  int next_ = 0;
  bool overlap_;
  bool learnt_ = false;
};

}  // namespace lockstep::ddp
