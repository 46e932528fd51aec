// SPDX-License-Identifier: Apache-2.0
#include "ddp/bucket_queue.h"

#include <gtest/gtest.h>

namespace lockstep::ddp {
namespace {

/// Three tensors, a bucket each: tensor 2 is in bucket 0, tensor 0 in bucket 2.
core::Layout three_buckets() {
  std::vector<core::TensorSpec> specs;
  for (const auto* name : {"a", "b", "c"}) {
    specs.push_back({name, {4}, {1}});
  }
  return core::plan_layout(specs, {1, 1});
}

/// A pass in which each tensor fires `times` times, so that the counts are known.
void teach(BucketQueue& queue, int times = 1) {
  queue.begin();
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < times; ++k) {
      EXPECT_TRUE(queue.fired(i));
    }
  }
  queue.learn();
  queue.begin();
}

TEST(BucketQueue, first_pass_sends_nothing_early) {
  BucketQueue queue(three_buckets(), true);
  EXPECT_TRUE(queue.fired(2));
  EXPECT_EQ(queue.pop_ready(), -1);
  EXPECT_EQ(queue.pop_any(), 0);
}

TEST(BucketQueue, leaves_in_index_order_whatever_gets_ready_first) {
  BucketQueue queue(three_buckets(), true);
  teach(queue);
  EXPECT_TRUE(queue.fired(0));
  EXPECT_EQ(queue.pop_ready(), -1);
  EXPECT_TRUE(queue.fired(2));
  EXPECT_EQ(queue.pop_ready(), 0);
  EXPECT_EQ(queue.pop_ready(), -1);
  EXPECT_TRUE(queue.fired(1));
  EXPECT_EQ(queue.pop_ready(), 1);
  EXPECT_EQ(queue.pop_ready(), 2);
  EXPECT_EQ(queue.pop_any(), -1);
}

TEST(BucketQueue, waits_for_as_many_gradients_as_there_ever_were) {
  BucketQueue queue(three_buckets(), true);
  teach(queue, 2);
  EXPECT_TRUE(queue.fired(2));
  EXPECT_EQ(queue.pop_ready(), -1);
  EXPECT_TRUE(queue.fired(2));
  EXPECT_EQ(queue.pop_ready(), 0);
}

TEST(BucketQueue, a_gradient_after_its_bucket_left_is_too_late) {
  BucketQueue queue(three_buckets(), true);
  teach(queue);
  EXPECT_TRUE(queue.fired(2));
  EXPECT_EQ(queue.pop_ready(), 0);
  EXPECT_FALSE(queue.fired(2));
}

TEST(BucketQueue, without_overlap_everything_leaves_at_the_end) {
  BucketQueue queue(three_buckets(), false);
  teach(queue);
  EXPECT_TRUE(queue.fired(2));
  EXPECT_EQ(queue.pop_ready(), -1);
}

TEST(BucketQueue, an_unused_tensor_holds_its_bucket_back_even_if_it_never_fired) {
  BucketQueue queue(three_buckets(), true);
  queue.begin();
  EXPECT_TRUE(queue.fired(0));
  queue.learn();
  queue.begin();
  EXPECT_TRUE(queue.fired(0));
  EXPECT_EQ(queue.pop_ready(), -1);
  EXPECT_TRUE(queue.fired(2));
  EXPECT_EQ(queue.pop_ready(), 0);
}

}  // namespace
}  // namespace lockstep::ddp
