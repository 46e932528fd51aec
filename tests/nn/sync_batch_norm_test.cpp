// SPDX-License-Identifier: Apache-2.0
// Equality with BatchNorm on the joined batch.
#include <torch/nn/modules/linear.h>

#include "nn/nn_testing.h"

namespace lockstep {
namespace {

using test::Batch;
using test::Sizes;
using torch::nn::BatchNormOptions;

// Six rows or more, since few values make a variance that is badly conditioned. Even shares, and uneven ones with an
// empty one wherever there are ranks enough.
std::vector<Sizes> splits(int ranks) {
  const std::vector<Sizes> uneven{{}, {9}, {5, 1}, {0, 4, 3}, {3, 0, 1, 5}};
  return {Sizes(static_cast<std::size_t>(ranks), ranks == 1 ? 6 : 3), uneven[static_cast<std::size_t>(ranks)]};
}

const std::vector<Sizes> kShapes{{}, {3}, {3, 2}, {2, 1, 3}};

struct Setting {
  Batch batch;
  test::Results expected;
  BatchNormOptions options;
};

std::vector<Setting> settings(int ranks, at::ScalarType dtype, const std::vector<std::int64_t>& channels,
                              const std::function<void(BatchNormOptions&)>& change = {}) {
  std::vector<Setting> list;
  for (const auto& rest : kShapes) {
    for (const auto count : channels) {
      for (const auto& parts : splits(ranks)) {
        BatchNormOptions options(count);
        if (change) {
          change(options);
        }
        const auto batch = test::make_batch(count, parts, rest, dtype, list.size() + 7);
        list.push_back({batch, test::reference(options, batch, list.size()), options});
      }
    }
  }
  return list;
}

void expect_all_equal(int ranks, const std::vector<Setting>& list) {
  test::run(ranks, [&](World& world) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto& [batch, expected, options] = list[i];
      SCOPED_TRACE(core::str(ranks, " ranks, ", batch.input.scalar_type(), batch.input.sizes(), " in ", batch.parts));
      auto module = test::made_for(world, options, batch.input.scalar_type(), i);
      test::expect_equal_to_joined(world, *module, batch, batch.part_of(batch.input, world.rank()),
                                   batch.part_of(batch.gradient, world.rank()), expected);
    }
  });
}

TEST(SyncBatchNorm, equals_batch_norm_on_the_joined_batch_for_all_channels_and_shapes) {
  for (const int ranks : {1, 2, 3, 4}) {
    expect_all_equal(ranks, settings(ranks, at::kFloat, {1, 3, 64, 65, 130}));
  }
}

TEST(SyncBatchNorm, equals_batch_norm_in_double_and_in_16_bits) {
  for (const auto dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int ranks : {2, 3}) {
      expect_all_equal(ranks, settings(ranks, dtype, {3, 65}));
    }
  }
}

TEST(SyncBatchNorm, options_are_batch_norms) {
  const std::vector<std::function<void(BatchNormOptions&)>> changes{
      [](auto& o) { o.momentum(std::nullopt); },     [](auto& o) { o.momentum(0.0); },
      [](auto& o) { o.momentum(0.7).eps(0.3); },     [](auto& o) { o.affine(false); },
      [](auto& o) { o.track_running_stats(false); }, [](auto& o) { o.affine(false).track_running_stats(false); }};
  for (const auto& change : changes) {
    expect_all_equal(2, settings(2, at::kFloat, {3}, change));
    expect_all_equal(3, settings(3, at::kDouble, {3}, change));
  }
}

/// A tensor of the same values: contiguous, channels last, or with its first and last dimensions swapped in memory.
at::Tensor in_layout(const at::Tensor& tensor, int layout) {
  if (layout == 1) {
    return tensor.contiguous(tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast);
  }
  return layout == 2 ? tensor.transpose(0, -1).contiguous().transpose(0, -1) : tensor.contiguous();
}

TEST(SyncBatchNorm, layouts_of_input_and_gradient_mix) {
  for (const Sizes& rest : {Sizes{4, 3}, Sizes{2, 3, 4}}) {
    for (const std::int64_t channels : {3, 65, 130}) {
      const auto batch = test::make_batch(channels, {2, 3}, rest, at::kFloat, 5);
      const auto expected = test::reference(BatchNormOptions(channels), batch, 5);
      test::run(2, [&](World& world) {
        for (int layout = 0; layout < 9; ++layout) {
          SCOPED_TRACE(core::str(batch.input.sizes(), " input ", layout / 3, " gradient ", layout % 3));
          const auto input = in_layout(batch.part_of(batch.input, world.rank()), layout / 3);
          const auto gradient = in_layout(batch.part_of(batch.gradient, world.rank()), layout % 3);
          auto module = test::made_for(world, channels, at::kFloat, 5);
          EXPECT_EQ(module->forward(input).suggest_memory_format(), input.suggest_memory_format());
          module->reset_running_stats();
          test::expect_equal_to_joined(world, *module, batch, input, gradient, expected);
        }
      });
    }
  }
}

/// A mean far from zero cancels in sums of squares: the merge must not use them.
TEST(SyncBatchNorm, keeps_its_digits_far_from_zero) {
  const auto noise = test::random({64, 2}, 3);
  const Batch batch{noise + 1e4, test::random({64, 2}, 4), {40, 24}};
  const auto expected = test::reference(BatchNormOptions(2), batch, 1);
  test::run(2, [&](World& world) {
    auto module = test::made_for(world, 2, at::kFloat, 1);
    const auto rank = world.rank();
    module->forward(batch.part_of(batch.input, rank));
    test::expect_close(module->running_var, expected.running_var, {1e-4, 0}, "running variance");
  });
}

TEST(SyncBatchNorm, groups_keep_to_themselves) {
  const auto first = test::make_batch(3, {2, 3}, {2}, at::kDouble, 1);
  const auto second = test::make_batch(3, {4, 1}, {2}, at::kDouble, 2);
  const std::vector<test::Results> expected{test::reference(BatchNormOptions(3), first, 9),
                                            test::reference(BatchNormOptions(3), second, 9)};
  test::run(4, [&](World& world) {
    const int color = world.rank() / 2;
    const auto group = world.split(color, world.rank());
    const auto& batch = color == 0 ? first : second;
    auto module = test::made_for(group, 3, at::kDouble, 9);
    test::expect_equal_to_joined(group, *module, batch, batch.part_of(batch.input, group.rank()),
                                 batch.part_of(batch.gradient, group.rank()),
                                 expected[static_cast<std::size_t>(color)]);
  });
}

double loss_of(const World& world, nn::SyncBatchNorm& module, const at::Tensor& input, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  auto sum = (module->forward(input) * gradient).sum();
  world.all_reduce(sum).wait();
  return sum.item<double>();
}

// Every rank computes the difference quotient of the loss over all ranks, for one element of one rank's tensor.
void expect_gradient(const World& world, nn::SyncBatchNorm& module, const at::Tensor& input, const at::Tensor& dy,
                     const at::Tensor& varied, const at::Tensor& gradient, int owner) {
  constexpr double h = 1e-5;
  const auto count = owner == 0 ? 3 : 2;  // some elements of each tensor
  for (std::int64_t i = 0; i < count; ++i) {
    const auto move = [&](double by) {
      if (world.rank() == owner) {
        const at::NoGradGuard no_grad;
        varied.view(-1)[i].add_(by);
      }
      return loss_of(world, module, input, dy);
    };
    const double up = move(h), down = move(-2 * h);
    move(h);
    if (world.rank() == owner) {
      EXPECT_NEAR(gradient.reshape(-1)[i].item<double>(), (up - down) / (2 * h), 1e-7) << i;
    }
  }
}

TEST(SyncBatchNorm, gradients_are_difference_quotients_of_the_loss_over_all_ranks) {
  const auto batch = test::make_batch(2, {2, 3, 0}, {2}, at::kDouble, 11);
  test::run(3, [&](World& world) {
    auto module = test::made_for(world, nn::SyncBatchNormOptions(2).track_running_stats(false), at::kDouble, 3);
    const auto input = batch.part_of(batch.input, world.rank()).clone();
    const auto dy = batch.part_of(batch.gradient, world.rank());
    const auto results = test::results_of(*module, input, dy);
    for (const int owner : {0, 1}) {
      expect_gradient(world, module, input, dy, input, results.input_grad, owner);
    }
    EXPECT_EQ(results.input_grad.numel(), input.numel());
    const Sizes sample{0, 2};
    const auto unscaled = (module->forward(input) - module->bias.view({1, 2, 1})) / module->weight.view({1, 2, 1});
    test::expect_close(results.bias_grad, at::sum(dy, sample), {1e-9, 1e-9}, "this rank's part for the bias");
    test::expect_close(results.weight_grad, at::sum(dy * unscaled, sample), {1e-9, 1e-9}, "and for the weight");
  });
}

}  // namespace
}  // namespace lockstep
