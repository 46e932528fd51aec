// SPDX-License-Identifier: Apache-2.0
// Ranks that each see their share of a batch must train like one process that sees all of it.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::mlp;
using test::random;

constexpr std::int64_t kPerRank = 4;
constexpr int kSteps = 6;

/// Parameters after training in one process on the joined batch.
std::vector<at::Tensor> reference(int ranks, std::uint64_t seed) {
  auto net = mlp(seed);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    const auto x = random({ranks * kPerRank, 6}, 500 + static_cast<std::uint64_t>(step));
    optimizer.zero_grad();
    net->forward(x).square().mean().backward();
    optimizer.step();
  }
  return net->parameters();
}

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    // Sums of at most 16 products of numbers near one in another order: a few units of 2^-24 each.
    EXPECT_TRUE(at::allclose(a[i], b[i], 1e-6, 1e-7)) << "parameter " << i << " off by " << (a[i] - b[i]).abs().max();
  }
}

struct Case {
  int ranks;
  double bucket_mb;
  bool set_to_none;
};

class Reduction : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Grid, Reduction,
                         testing::Values(Case{1, 25, true}, Case{2, 25, true}, Case{2, 1e-5, true}, Case{2, 25, false},
                                         Case{3, 1e-4, false}, Case{4, 1e-5, true}, Case{4, 25, false}));

TEST_P(Reduction, equals_one_process_on_the_joined_batch) {
  const auto [ranks, bucket_mb, set_to_none] = GetParam();
  const auto expected = reference(ranks, 3);
  run_ranks(ranks, [&, bucket_mb = bucket_mb, set_to_none = set_to_none](World& world) {
    auto net = mlp(3 + 17 * static_cast<std::uint64_t>(world.rank()));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    DistributedDataParallel ddp(net, world, {.bucket_cap_mb = bucket_mb, .first_bucket_mb = bucket_mb});
    for (int step = 0; step < kSteps; ++step) {
      const auto x = random({world.size() * kPerRank, 6}, 500 + static_cast<std::uint64_t>(step));
      optimizer.zero_grad(set_to_none);
      ddp.forward(test::share(x, world.rank(), kPerRank)).square().mean().backward();
      optimizer.step();
      EXPECT_EQ(ddp.difference(), "") << "step " << step;
    }
    expect_close(net->parameters(), expected);
  });
}

/// y = w * x with one value per rank: two ranks' sums are exact, so the comparison is bitwise.
TEST(ReductionExact, two_ranks_average_exactly) {
  run_ranks(2, [](World& world) {
    auto w = at::zeros({4}).requires_grad_();
    const DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world);
    (w * (world.rank() == 0 ? 1.0 : 3.0)).sum().backward();
    EXPECT_TRUE(at::equal(w.grad(), at::full({4}, 2.0F)));
  });
}

TEST(ReductionExact, A9_a_loss_made_without_the_wrapper_is_reduced) {
  run_ranks(2, [](World& world) {
    auto net = torch::nn::Linear(1, 1);
    DistributedDataParallel ddp(net, world);
    (net->weight * (world.rank() == 0 ? 1.0 : 3.0) + net->bias).sum().backward();
    EXPECT_EQ(net->weight.grad().item<float>(), 2);
  });
}

TEST(ReductionExact, B12_order_of_readiness_may_differ_between_ranks) {
  run_ranks(2, [](World& world) {
    auto a = at::ones({3}).requires_grad_();
    auto b = at::ones({3}).requires_grad_();
    const DataParallelBase ddp(ModelTensors{{{"a", a}, {"b", b}}, {}}, world,
                               {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6});
    for (int step = 0; step < 5; ++step) {
      a.mutable_grad() = b.mutable_grad() = at::Tensor();
      const double g = world.rank() == 0 ? 2 : 4;
      const auto x = world.rank() == 0 ? (a * g).exp().log() + b * g : a * g + (b * g).exp().log();
      x.sum().backward();
      EXPECT_TRUE(at::allclose(a.grad(), at::full({3}, 3.0F))) << step;
      EXPECT_TRUE(at::allclose(b.grad(), at::full({3}, 3.0F))) << step;
    }
  });
}

TEST(ReductionExact, C6_mixed_dtypes_scalars_and_empty_parameters) {
  for (const double bucket_mb : {1e-6, 25.0}) {
    run_ranks(3, [&](World& world) {
      ModelTensors tensors;
      int i = 0;
      for (const auto dtype : {at::kBFloat16, at::kFloat, at::kHalf, at::kDouble, at::kComplexFloat}) {
        for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{5}, {}, {0, 4}}) {
          tensors.parameters.push_back({"p" + std::to_string(i++), at::zeros(sizes, dtype).requires_grad_()});
        }
      }
      const DataParallelBase ddp(tensors, world, {.bucket_cap_mb = bucket_mb, .first_bucket_mb = bucket_mb});
      for (int step = 0; step < 2; ++step) {
        auto loss = at::zeros({}, at::kDouble);
        for (auto& p : tensors.parameters) {
          p.tensor.mutable_grad() = at::Tensor();
          loss = loss + at::real(p.tensor * (3.0 * world.rank())).to(at::kDouble).sum();
        }
        loss.backward();
        for (const auto& p : tensors.parameters) {
          const auto& grad = p.tensor.grad();
          ASSERT_TRUE(grad.defined()) << p.name;
          EXPECT_EQ(grad.scalar_type(), p.tensor.scalar_type());
          EXPECT_TRUE(at::allclose(at::real(grad).to(at::kDouble), at::full(p.tensor.sizes(), 3.0, at::kDouble), 1e-2))
              << p.name << grad;
        }
      }
    });
  }
}

TEST(ReductionExact, C5_the_imaginary_part_is_reduced) {
  run_ranks(2, [](World& world) {
    auto w = at::zeros({2}, at::kComplexFloat).requires_grad_();
    const DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world);
    const c10::complex<float> g = world.rank() == 0 ? c10::complex<float>(1, 2) : c10::complex<float>(3, -4);
    w.mutable_grad() = at::full({2}, g);  // accumulated before, so that the value is known
    at::real(w * 0).sum().backward();
    EXPECT_TRUE(at::equal(w.grad(), at::full({2}, c10::complex<float>(2, -1))));
  });
}

TEST(ReductionExact, C4_sparse_gradients_arrive_as_their_sum) {
  run_ranks(2, [](World& world) {
    auto w = at::zeros({4, 2}).requires_grad_();
    const DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world);
    const auto rows = world.rank() == 0 ? at::zeros({0}, at::kLong) : at::tensor({1, 1, 2}, at::kLong);
    at::embedding(w, rows, -1, false, /*sparse=*/true).sum().backward();
    const auto expected = at::tensor({0., 0., 1., 1., .5, .5, 0., 0.}, at::kFloat).view({4, 2});
    EXPECT_TRUE(at::equal(w.grad(), expected)) << w.grad();
  });
}

TEST(ReductionExact, C2_a_kept_gradient_keeps_its_values) {
  World world;
  auto w = at::zeros({3}).requires_grad_();
  const DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world);
  (w * 1).sum().backward();
  const auto kept = w.grad();
  w.mutable_grad() = at::Tensor();
  (w * 2).sum().backward();
  EXPECT_TRUE(at::equal(kept, at::ones({3})));
  EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 2.0F)));
}

TEST(ReductionExact, C2_gradients_assigned_by_the_user_are_accumulated_into) {
  run_ranks(2, [](World& world) {
    auto w = at::zeros({3}).requires_grad_();
    const DataParallelBase ddp(ModelTensors{{{"w", w}}, {}}, world);
    w.mutable_grad() = at::full({3}, static_cast<float>(world.rank()));
    (w * 1).sum().backward();
    EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 1.5F)));
  });
}

TEST(ReductionExact, channels_last_gradients_keep_their_strides) {
  World world;
  torch::nn::Conv2d net(3, 4, 3);
  net->weight.set_data(net->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
  DistributedDataParallel ddp(net, world);
  ddp(random({2, 3, 8, 8}, 1)).sum().backward();
  EXPECT_EQ(net->weight.grad().strides(), net->weight.strides());
}

TEST(ReductionExact, two_forwards_one_backward_and_one_forward_two_backwards) {
  run_ranks(2, [](World& world) {
    auto net = torch::nn::Linear(2, 1);
    DistributedDataParallel ddp(net, world);
    const auto x = at::full({1, 2}, static_cast<double>(world.rank()));
    (ddp(x) + ddp(x)).sum().backward();
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 1);
    net->zero_grad();
    const auto y = ddp(x);
    y.sum().backward({}, /*retain_graph=*/true);
    y.sum().backward();
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 1) << "0.5 twice";
    ddp(x);  // a forward without a backward leaves nothing behind
    net->zero_grad();
    ddp(x).sum().backward();
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 0.5);
  });
}

TEST(ReductionExact, buffers_follow_rank_0_after_each_reduced_backward) {
  run_ranks(2, [](World& world) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(2));
    DistributedDataParallel ddp(net, world);
    ddp(random({8, 2}, 40 + static_cast<std::uint64_t>(world.rank()))).sum().backward();
    EXPECT_EQ(ddp.difference(), "");
    torch::nn::Sequential alone(torch::nn::BatchNorm1d(2));
    alone->forward(random({8, 2}, 40));
    EXPECT_TRUE(at::equal(net->buffers()[0], alone->buffers()[0]));
  });
}

TEST(ReductionExact, B8_two_forwards_through_batch_norm_then_one_backward) {
  run_ranks(2, [](World& world) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(2));
    DistributedDataParallel ddp(net, world);
    for (int step = 0; step < 2; ++step) {
      const auto y = ddp(random({8, 2}, 1)) + ddp(random({8, 2}, 2));
      EXPECT_NO_THROW(y.square().sum().backward());
    }
  });
}

TEST(ReductionExact, statistics_count_what_was_sent) {
  run_ranks(2, [](World& world) {
    auto net = mlp(1);
    DistributedDataParallel ddp(net, world, {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6});
    for (int step = 0; step < 3; ++step) {
      ddp(random({2, 6}, 1)).sum().backward();
    }
    const auto statistics = ddp.statistics();
    EXPECT_EQ(statistics.reduced_backwards, 3U);
    EXPECT_EQ(statistics.buckets, 6);
    EXPECT_EQ(statistics.all_reduces, 18U);
  });
}

// Nothing is to be reduced there, so nothing is copied; a hook still gets its buckets.
TEST(WorldOfOne, leaves_gradients_where_autograd_has_put_them) {
  auto net = mlp(3);
  DistributedDataParallel ddp(net, World());
  const void* arrived = nullptr;
  net->parameters()[1].register_hook([&](const at::Tensor& gradient) { arrived = gradient.const_data_ptr(); });
  ddp.forward(random({4, 6}, 1)).sum().backward();
  const auto kept = net->parameters()[1].grad();
  EXPECT_EQ(kept.const_data_ptr(), arrived);
  ddp.forward(random({4, 6}, 1)).sum().backward();
  EXPECT_TRUE(net->parameters()[1].grad().is_same(kept));
  EXPECT_EQ(ddp.statistics().all_reduces, 2U * static_cast<std::uint64_t>(ddp.statistics().buckets));
  EXPECT_GT(ddp.statistics().bytes_reduced, 0U);
}

TEST(WorldOfOne, gives_a_hook_its_buckets) {
  auto net = mlp(3);
  DistributedDataParallel ddp(net, World());
  ddp.register_comm_hook([](const GradientBucket& bucket) -> std::function<void()> {
    return [buffer = bucket.buffer] { buffer.zero_(); };
  });
  ddp.forward(random({4, 6}, 1)).sum().backward();
  for (const auto& parameter : net->parameters()) {
    EXPECT_EQ(parameter.grad().abs().sum().item<double>(), 0);
  }
}

}  // namespace
}  // namespace lockstep
