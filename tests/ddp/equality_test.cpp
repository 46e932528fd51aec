// SPDX-License-Identifier: Apache-2.0
// Ten steps on n ranks against ten steps of one process on the joined batch.
//
// The reference comes in two forms. Joined: one forward over all samples, in double, so that only the order of sums
// differs. A gradient is then off by about k * 2^-53 of its largest term, k terms being summed; Adam divides it by its
// own size, which for sums that nearly cancel costs a few digits more. 1e-10 leaves room for that over ten steps, and
// is ten thousand times stricter than what fp32 would allow (1e-6). Shared out: one process takes the same shares one
// after the other and averages their gradients as two ranks do. There every sum has the same order, so in fp32 the bits
// must be equal.
//
// BatchNorm normalises each rank's share by itself, so its reference is always the shared out one: the joined loss is
// the mean of the shares' losses, and the running statistics are rank 0's.
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/networks.h"
#include "support/ranks.h"

namespace lockstep::equality {
namespace {

constexpr std::int64_t kPerRank = 3;
constexpr int kSteps = 10;

struct Case {
  const char* network;
  bool adam;
  int ranks;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const test::Network& network, bool adam) {
  if (adam) {
    return std::make_unique<torch::optim::Adam>(network.unique_parameters(), torch::optim::AdamOptions(0.01));
  }
  return std::make_unique<torch::optim::SGD>(network.unique_parameters(),
                                             torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

at::Tensor joined_batch(const test::Network& network, int ranks, int step, at::ScalarType dtype) {
  return network.batch(ranks * kPerRank, 700 + static_cast<std::uint64_t>(step), dtype);
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& t : tensors) {
    result.push_back(t.detach().clone());
  }
  return result;
}

struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
};

Trained joined(const Case& c) {
  auto network = test::make_network(c.network, 1, at::kDouble);
  const auto optimizer = make_optimizer(*network, c.adam);
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    network->forward(joined_batch(*network, c.ranks, step, at::kDouble)).backward();
    optimizer->step();
  }
  return {network->unique_parameters(), {}};
}

/// Gradients of the shares are scaled and summed like two ranks' are: g0 / n + g1 / n + ...
void shared_out_step(test::Network& network, const at::Tensor& batch, int ranks) {
  const auto parameters = network.unique_parameters();
  std::vector<at::Tensor> sums;
  std::vector<at::Tensor> statistics;
  for (int rank = 0; rank < ranks; ++rank) {
    network.zero_grad();
    network.forward(test::share(batch, rank, kPerRank)).backward();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto part = parameters[i].grad() * (1.0 / ranks);
      rank == 0 ? sums.push_back(part) : void(sums[i] += part);
    }
    statistics = rank == 0 ? copies(network.buffers()) : statistics;
  }
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    network.buffers()[i].copy_(statistics[i]);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = sums[i];
  }
}

Trained shared_out(const Case& c, at::ScalarType dtype) {
  auto network = test::make_network(c.network, 1, dtype);
  const auto optimizer = make_optimizer(*network, c.adam);
  for (int step = 0; step < kSteps; ++step) {
    shared_out_step(*network, joined_batch(*network, c.ranks, step, dtype), c.ranks);
    optimizer->step();
  }
  return {network->unique_parameters(), network->buffers()};
}

using Compare = std::function<void(const at::Tensor&, const at::Tensor&)>;

void expect_close(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_TRUE(at::allclose(a, b, 1e-10, 1e-10)) << "off by " << (a - b).abs().max().item<double>();
}

void expect_same_bits(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_TRUE(at::equal(a, b)) << "off by " << (a - b).abs().max().item<double>();
}

void compare(const std::vector<at::Tensor>& mine, const std::vector<at::Tensor>& expected, const Compare& with) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i);
    with(mine[i], expected[i]);
  }
}

void train_and_compare(const Case& c, at::ScalarType dtype, bool tiny_buckets, bool set_to_none,
                       const Trained& expected, const Compare& with) {
  const double mib = tiny_buckets ? 1e-5 : 1000;
  test::run(c.ranks, [&](World& world) {
    // Ranks begin apart; wrapping gives all of them rank 0's parameters.
    auto network = test::make_network(c.network, 1 + static_cast<std::uint64_t>(world.rank()), dtype);
    const auto optimizer = make_optimizer(*network, c.adam);
    DistributedDataParallel ddp(network, world, {.bucket_cap_mb = mib, .first_bucket_mb = mib});
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad(set_to_none);
      ddp(test::share(joined_batch(*network, c.ranks, step, dtype), world.rank(), kPerRank)).backward();
      optimizer->step();
    }
    EXPECT_EQ(ddp.difference(), "");
    compare(network->unique_parameters(), expected.parameters, with);
    compare(network->buffers(), expected.buffers, with);
  });
}

class Equality : public testing::TestWithParam<std::tuple<const char*, bool>> {};
INSTANTIATE_TEST_SUITE_P(Networks, Equality,
                         testing::Combine(testing::Values("Mlp", "Cnn", "TiedEmbedding", "Transformer"),
                                          testing::Bool()),
                         [](const auto& network) {
                           return std::string(std::get<0>(network.param)) +
                                  (std::get<1>(network.param) ? "Adam" : "Sgd");
                         });

TEST_P(Equality, ten_steps_equal_one_process_on_the_joined_batch) {
  const auto [network, adam] = GetParam();
  for (const int ranks : {2, 3, 4}) {
    const Case c{network, adam, ranks};
    const auto expected = c.network == std::string("Cnn") ? shared_out(c, at::kDouble) : joined(c);
    for (const bool tiny_buckets : {false, true}) {
      for (const bool set_to_none : {false, true}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, tiny buckets " << tiny_buckets << ", set to none "
                                        << set_to_none);
        train_and_compare(c, at::kDouble, tiny_buckets, set_to_none, expected, expect_close);
      }
    }
  }
}

TEST_P(Equality, two_ranks_have_the_bits_of_one_process_that_takes_their_shares_in_turn) {
  const auto [network, adam] = GetParam();
  const Case c{network, adam, 2};
  const auto expected = shared_out(c, at::kFloat);
  for (const bool tiny_buckets : {false, true}) {
    train_and_compare(c, at::kFloat, tiny_buckets, /*set_to_none=*/!tiny_buckets, expected, expect_same_bits);
  }
}

}  // namespace
}  // namespace lockstep::equality
