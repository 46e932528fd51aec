// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing, named after PyTorch's tests of it. A segment is recomputed by a backward inside the
// backward; every variant must equal the same model without recomputation and without a wrapper.
#include <gtest/gtest.h>

#include "ddp/trials.h"
#include "support/checkpoint_function.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::checkpoint;
using test::random;

/// Weights of small square layers, and how forward uses them: `layer` applies one, recomputed in backward if asked to.
struct CheckpointedModel {
  std::vector<at::Tensor> weights;
  bool recompute;

  CheckpointedModel(int count, bool recomputed) : recompute(recomputed) {
    for (int i = 0; i < count; ++i) {
      weights.push_back(random({3, 3}, static_cast<std::uint64_t>(i)).requires_grad_());
    }
  }
  at::Tensor layer(const at::Tensor& x, std::size_t index) const {
    const test::Segment segment = [w = weights[index]](const at::Tensor& in) { return at::tanh(at::matmul(in, w)); };
    return recompute ? checkpoint(x, segment) : segment(x);
  }
};

using Forward = std::function<at::Tensor(const CheckpointedModel&, const at::Tensor& x, int step)>;

void expect_equal_to_plain(const CheckpointedModel& wrapped, const CheckpointedModel& plain, int step) {
  for (std::size_t i = 0; i < plain.weights.size(); ++i) {
    const auto& expected = plain.weights[i].grad();
    ASSERT_EQ(wrapped.weights[i].grad().defined(), expected.defined()) << "step " << step << " weight " << i;
    if (expected.defined()) {
      EXPECT_TRUE(at::allclose(wrapped.weights[i].grad(), expected, 1e-5, 1e-6)) << "step " << step << " weight " << i;
    }
  }
}

void train_both(World& world, int count, const Forward& forward, const DataParallelOptions& options) {
  const CheckpointedModel wrapped(count, true);
  const CheckpointedModel plain(count, false);
  const DataParallelBase ddp(test::named(wrapped.weights), world, options);
  for (int step = 0; step < 4; ++step) {
    test::forget_gradients(wrapped.weights);
    test::forget_gradients(plain.weights);
    const auto input = [&](int rank) {
      return random({2, 3}, static_cast<std::uint64_t>(10 * step + rank)).requires_grad_();
    };
    for (int rank = 0; rank < world.size(); ++rank) {
      (forward(plain, input(rank), step).square().sum() / world.size()).backward();
    }
    forward(wrapped, input(world.rank()), step).square().sum().backward();
    expect_equal_to_plain(wrapped, plain, step);
  }
}

void expect_equal(int count, const Forward& forward, const std::vector<UnusedParameters>& kinds) {
  for (const int ranks : {1, 2, 3}) {
    for (const auto unused : kinds) {
      for (const auto& options : test::tiny_and_huge_buckets(unused)) {
        test::run(ranks, [&](World& world) { train_both(world, count, forward, options); });
      }
    }
  }
}

const std::vector<UnusedParameters> kBoth = {UnusedParameters::Error, UnusedParameters::Detect};

TEST(Checkpointing, test_ddp_checkpointing_once) {
  expect_equal(
      3, [](const CheckpointedModel& m, const at::Tensor& x, int) { return m.layer(m.layer(m.layer(x, 0), 1), 2); },
      kBoth);
}

TEST(Checkpointing, test_ddp_checkpointing_unused_params) {
  const Forward forward = [](const CheckpointedModel& m, const at::Tensor& x, int) {
    return m.layer(m.layer(x, 0), 1);
  };
  expect_equal(3, forward, {UnusedParameters::Detect});
  for (const int ranks : {1, 2}) {
    const auto texts = test::errors_on_each_rank(
        ranks, [&](World& world) { train_both(world, 3, forward, {.unused = UnusedParameters::Error}); });
    test::expect_on_all(texts, "in step 0: p2");
  }
}

TEST(Checkpointing, test_ddp_checkpointing_twice) {
  expect_equal(
      2, [](const CheckpointedModel& m, const at::Tensor& x, int) { return m.layer(m.layer(m.layer(x, 0), 1), 0); },
      kBoth);
}

/// The layers that are used change from step to step.
TEST(Checkpointing, test_ddp_checkpointing_dynamic_module) {
  expect_equal(3,
               [](const CheckpointedModel& m, const at::Tensor& x, int step) {
                 const auto y = m.layer(x, 0);
                 return step % 2 == 0 ? m.layer(y, 1) : m.layer(y, 2);
               },
               {UnusedParameters::Detect});
}

TEST(Checkpointing, test_ddp_checkpointing_weight_sharing) {
  expect_equal(
      2,
      [](const CheckpointedModel& m, const at::Tensor& x, int) {
        return m.layer(m.layer(x, 0), 1) + at::matmul(x, m.weights[0]);
      },
      kBoth);
}

TEST(Checkpointing, test_ddp_checkpointing_twice_weight_sharing) {
  expect_equal(
      1, [](const CheckpointedModel& m, const at::Tensor& x, int) { return m.layer(m.layer(x, 0), 0); }, kBoth);
}

/// A segment inside a segment.
TEST(Checkpointing, nested) {
  expect_equal(
      2,
      [](const CheckpointedModel& m, const at::Tensor& x, int) {
        const test::Segment outer = [m](const at::Tensor& in) { return m.layer(m.layer(in, 0), 1); };
        return m.recompute ? checkpoint(x, outer) : outer(x);
      },
      kBoth);
}

}  // namespace
}  // namespace lockstep
