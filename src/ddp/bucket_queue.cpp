// SPDX-License-Identifier: Apache-2.0
#include "ddp/bucket_queue.h"

#include <algorithm>

namespace lockstep::ddp {

BucketQueue::BucketQueue(const core::Layout& layout, bool overlap)
    : fires_(layout.slots.size(), 0), expected_(layout.slots.size(), 1), overlap_(overlap) {
  for (const auto& slot : layout.slots) {
    bucket_of_.push_back(slot.bucket);
  }
  for (const auto& bucket : layout.buckets) {
    tensors_in_.push_back(static_cast<int>(bucket.tensors.size()));
  }
  waiting_ = tensors_in_;
}

void BucketQueue::begin() {
  std::fill(fires_.begin(), fires_.end(), 0);
  waiting_ = tensors_in_;
  next_ = 0;
}

bool BucketQueue::fired(int index) {
  const auto i = static_cast<std::size_t>(index);
  const int bucket = bucket_of_[i];
  if (++fires_[i] == expected_[i]) {
    --waiting_[static_cast<std::size_t>(bucket)];
  }
  return bucket >= next_;
}

int BucketQueue::pop_ready() {
  if (!overlap_ || !learnt_ || next_ == static_cast<int>(waiting_.size()) ||
      waiting_[static_cast<std::size_t>(next_)] > 0) {
    return -1;
  }
  return next_++;
}

int BucketQueue::pop_any() {
  return next_ == static_cast<int>(waiting_.size()) ? -1 : next_++;
}

void BucketQueue::learn() {
  for (std::size_t i = 0; i < fires_.size(); ++i) {
    expected_[i] = std::max(expected_[i], fires_[i]);
  }
  learnt_ = true;
}

}  // namespace lockstep::ddp
