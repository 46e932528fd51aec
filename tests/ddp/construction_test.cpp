// SPDX-License-Identifier: Apache-2.0
// What happens before the first step: models compared, live storages made equal, equality proved.
#include <gtest/gtest.h>

#include <mutex>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::mlp;
using torch::nn::Linear;
using torch::nn::Sequential;

/// Runs `wrap` on every rank and returns each rank's error text ("" where there was none).
std::vector<std::string> errors_of(int ranks, const std::function<void(World&)>& wrap) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    try {
      wrap(world);
    } catch (const InputError& error) {
      texts[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return texts;
}

void expect_same_error(const std::vector<std::string>& texts, const std::string& part) {
  for (const auto& text : texts) {
    EXPECT_EQ(text, texts[0]);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

class Construction : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Construction, testing::Values(1, 2, 3, 4));

TEST_P(Construction, every_rank_ends_with_rank_0s_parameters_and_buffers) {
  const auto expected = mlp(100);
  run_ranks(GetParam(), [&](World& world) {
    auto net = mlp(100 + static_cast<std::uint64_t>(world.rank()));
    net->push_back(torch::nn::BatchNorm1d(3));
    const c10::NoGradGuard no_grad;
    net->buffers()[0].fill_(world.rank());
    const auto before = net->parameters();
    DistributedDataParallel ddp(net, world);
    const auto after = net->parameters();
    for (std::size_t i = 0; i < expected->parameters().size(); ++i) {
      EXPECT_TRUE(after[i].is_same(before[i]));
      EXPECT_TRUE(at::equal(after[i], expected->parameters()[i]));
    }
    EXPECT_EQ(net->buffers()[0].max().item<float>(), 0);
    EXPECT_EQ(ddp.difference(), "");
  });
}

TEST(ConstructionErrors, A1_different_number_of_parameters) {
  const auto texts = errors_of(3, [](World& world) {
    Sequential net(Linear(2, 2));
    if (world.rank() != 1) {
      net->push_back(Linear(2, 2));
    }
    DistributedDataParallel ddp(net, world);
  });
  expect_same_error(texts, "1.weight");
  expect_same_error(texts, "2 tensors against 4");
}

TEST(ConstructionErrors, A1_different_shape_dtype_or_trainability) {
  expect_same_error(errors_of(2,
                              [](World& world) {
                                Sequential net(Linear(2, 2 + world.rank()));
                                DistributedDataParallel ddp(net, world);
                              }),
                    "0.weight: [3, 2]");
  expect_same_error(errors_of(2,
                              [](World& world) {
                                Sequential net(Linear(2, 2));
                                net->to(world.rank() == 0 ? at::kFloat : at::kDouble);
                                DistributedDataParallel ddp(net, world);
                              }),
                    "Double");
  expect_same_error(errors_of(2,
                              [](World& world) {
                                Sequential net(Linear(2, 2));
                                net->parameters()[1].requires_grad_(world.rank() == 0);
                                DistributedDataParallel ddp(net, world);
                              }),
                    "0.bias");
}

TEST(ConstructionErrors, A1_different_lists_to_ignore) {
  expect_same_error(errors_of(2,
                              [](World& world) {
                                Sequential net(Linear(2, 2), Linear(2, 2));
                                DataParallelOptions options;
                                if (world.rank() == 1) {
                                  options.ignore = {"1.bias"};
                                }
                                DistributedDataParallel ddp(net, world, options);
                              }),
                    "1.bias");
}

TEST(ConstructionErrors, A2_different_strides_are_refused) {
  expect_same_error(errors_of(2,
                              [](World& world) {
                                Sequential net(torch::nn::Conv2d(3, 8, 3));
                                if (world.rank() == 1) {
                                  auto weight = net->parameters()[0];
                                  weight.set_data(weight.data().contiguous(at::MemoryFormat::ChannelsLast));
                                }
                                DistributedDataParallel ddp(net, world);
                              }),
                    "strides");
}

TEST(ConstructionErrors, A2_channels_last_everywhere_keeps_values_and_strides) {
  run_ranks(2, [](World& world) {
    Sequential net(torch::nn::Conv2d(3, 8, 3));
    test::fill_parameters(net->parameters(), static_cast<std::uint64_t>(world.rank()));
    auto weight = net->parameters()[0];
    weight.set_data(weight.data().contiguous(at::MemoryFormat::ChannelsLast));
    DistributedDataParallel ddp(net, world);
    EXPECT_TRUE(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(at::equal(weight, test::random(weight.sizes(), 0) * 0.3));
  });
}

TEST(ConstructionErrors, A4_nothing_to_train_is_one_clear_sentence) {
  const auto frozen = errors_of(2, [](World& world) {
    Sequential net(Linear(2, 2));
    for (auto& p : net->parameters()) {
      p.requires_grad_(false);
    }
    DistributedDataParallel ddp(net, world);
  });
  expect_same_error(frozen, "no parameter of the model requires a gradient");
  expect_same_error(errors_of(1,
                              [](World& world) {
                                Sequential net{torch::nn::Tanh()};
                                DistributedDataParallel ddp(net, world);
                              }),
                    "no parameter");
}

TEST(ConstructionErrors, an_error_of_one_rank_reaches_all_by_name) {
  const auto texts = errors_of(3, [](World& world) {
    Sequential net(Linear(2, 2));
    DataParallelOptions options;
    if (world.rank() == 2) {
      options.ignore = {"typo"};
    }
    DistributedDataParallel ddp(net, world, options);
  });
  expect_same_error(texts, "'typo'");
  expect_same_error(texts, "(rank 2)");
}

TEST(ConstructionErrors, a_model_is_wrapped_once_at_a_time) {
  World world;
  auto net = mlp(1);
  {
    DistributedDataParallel first(net, world);
    EXPECT_THROW(DistributedDataParallel(net, world), InputError);
  }
  EXPECT_NO_THROW(DistributedDataParallel(net, world));
}

TEST(ConstructionErrors, B3_a_shared_tensor_is_one_parameter) {
  World world;
  auto weight = at::ones({3}).requires_grad_();
  DataParallelBase ddp(ModelTensors{{{"first", weight}, {"second", weight}}, {}}, world);
  EXPECT_EQ(ddp.describe().find("second"), std::string::npos);
}

TEST(ConstructionErrors, without_init_sync_ranks_keep_their_own) {
  run_ranks(2, [](World& world) {
    auto net = mlp(static_cast<std::uint64_t>(world.rank()));
    DistributedDataParallel ddp(net, world, {.init_sync = false});
    EXPECT_NE(ddp.difference().find("0.weight differs from rank 0"), std::string::npos) << ddp.difference();
    ddp.broadcast_now(1);
    EXPECT_EQ(ddp.difference(), "");
    EXPECT_TRUE(at::equal(net->parameters()[0], mlp(1)->parameters()[0]));
  });
}

TEST(ConstructionErrors, the_digest_does_not_depend_on_the_number_of_ranks) {
  std::mutex mutex;
  std::vector<std::uint64_t> digests;
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](World& world) {
      auto net = mlp(7 + static_cast<std::uint64_t>(world.rank()));
      const DistributedDataParallel ddp(net, world);
      const std::lock_guard lock(mutex);
      digests.push_back(ddp.digest());
    });
  }
  EXPECT_EQ(std::count(digests.begin(), digests.end(), digests[0]), 6);
}

}  // namespace
}  // namespace lockstep
