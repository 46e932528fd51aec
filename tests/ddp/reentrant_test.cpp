// SPDX-License-Identifier: Apache-2.0
// A backward inside a backward: gradients of one parameter arrive in several passes within the outermost one.
#include <gtest/gtest.h>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/checkpoint_function.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::checkpoint;
using test::random;

struct Layers {
  torch::nn::Linear first{4, 4};
  torch::nn::Linear second{4, 4};
  torch::nn::Linear third{4, 4};

  std::vector<at::Tensor> parameters() const {
    return {first->weight, first->bias, second->weight, second->bias, third->weight, third->bias};
  }
  ModelTensors tensors() const {
    return {{{"first.weight", first->weight},
             {"first.bias", first->bias},
             {"second.weight", second->weight},
             {"second.bias", second->bias},
             {"third.weight", third->weight},
             {"third.bias", third->bias}},
            {}};
  }
  /// Every layer `times` times, each time recomputed (or not) in backward.
  at::Tensor forward(at::Tensor x, int times, bool recompute) {
    for (int i = 0; i < times; ++i) {
      for (const auto& layer : {first, second, third}) {
        const test::Segment segment = [layer](const at::Tensor& in) {
          return at::tanh(at::linear(in, layer->weight, layer->bias));
        };
        x = recompute ? checkpoint(x, segment) : segment(x);
      }
    }
    return x;
  }
};

class Reentrant : public testing::TestWithParam<std::tuple<int, int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Grid, Reentrant,
                         testing::Combine(testing::Values(1, 2), testing::Values(1, 2, 3), testing::Bool()));

TEST_P(Reentrant, B4_equals_the_same_model_without_recomputation) {
  const auto [ranks, times, detect] = GetParam();
  run_ranks(ranks, [&, times = times, detect = detect](World& world) {
    Layers plain;
    Layers wrapped;
    test::fill_parameters(plain.parameters(), 9);
    test::fill_parameters(wrapped.parameters(), 9);
    const DataParallelBase ddp(wrapped.tensors(), world,
                               {.unused = detect ? UnusedParameters::Detect : UnusedParameters::Error,
                                .bucket_cap_mb = 1e-6,
                                .first_bucket_mb = 1e-6});
    for (int step = 0; step < 4; ++step) {
      for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
        plain.parameters()[i].mutable_grad() = at::Tensor();
        wrapped.parameters()[i].mutable_grad() = at::Tensor();
      }
      for (int rank = 0; rank < world.size(); ++rank) {
        const auto x = random({2, 4}, static_cast<std::uint64_t>(10 * step + rank)).requires_grad_();
        (plain.forward(x, times, false).square().sum() / world.size()).backward();
      }
      const auto mine = random({2, 4}, static_cast<std::uint64_t>(10 * step + world.rank())).requires_grad_();
      wrapped.forward(mine, times, true).square().sum().backward();
      for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
        EXPECT_TRUE(at::allclose(wrapped.parameters()[i].grad(), plain.parameters()[i].grad(), 1e-5, 1e-6))
            << "step " << step << " parameter " << i;
      }
    }
  });
}

TEST(ReentrantErrors, a_gradient_after_its_bucket_was_sent_is_named_not_lost) {
  World world;
  Layers model;
  const DataParallelBase ddp(model.tensors(), world, {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6});
  model.forward(random({2, 4}, 1).requires_grad_(), 1, true).sum().backward();
  try {
    model.forward(random({2, 4}, 1).requires_grad_(), 2, true).sum().backward();
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("third.bias"), std::string::npos) << error.what();
  }
}

TEST(ReentrantErrors, without_overlap_the_number_of_passes_may_grow) {
  World world;
  Layers model;
  const DataParallelBase ddp(model.tensors(), world,
                             {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6, .overlap = false});
  for (int times = 1; times < 4; ++times) {
    EXPECT_NO_THROW(model.forward(random({2, 4}, 1).requires_grad_(), times, true).sum().backward());
  }
}

}  // namespace
}  // namespace lockstep
