// SPDX-License-Identifier: Apache-2.0
// Every level with every loss scale and every place for BatchNorm (after apex's L1 cross product): what is legal trains
// alike, twice the same bit for bit; what is not is refused by name.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "amp/amp_testing.h"
#include "lockstep/amp/opt_level.h"
#include "support/models.h"

namespace lockstep::amp {
namespace {

using torch::optim::SGD;

struct Cell {
  OptLevel level;
  std::optional<LossScale> loss_scale;
  std::optional<bool> keep_batchnorm;
};

std::vector<Cell> all_cells() {
  const std::vector<std::optional<LossScale>> scales{std::nullopt, LossScale(1.0), LossScale(128.0),
                                                     LossScale("dynamic")};
  std::vector<Cell> cells;
  for (const auto level : {OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3}) {
    for (const auto& scale : scales) {
      for (const auto keep : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
        cells.push_back({level, scale, keep});
      }
    }
  }
  return cells;
}

std::vector<double> losses_in(const Cell& cell) {
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::ReLU(),
                            torch::nn::Linear(8, 2));
  lockstep::test::fill_parameters(net->parameters(), 3);
  SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto amp = initialize(*net, optimizer, cell.level,
                        {.keep_batchnorm_fp32 = cell.keep_batchnorm, .loss_scale = cell.loss_scale});
  const auto x = lockstep::test::random({16, 4}, 4), target = lockstep::test::random({16, 2}, 5);
  std::vector<double> losses;
  for (int step = 0; step < 6; ++step) {
    const auto loss = at::mse_loss(amp.forward(net, x), target);
    losses.push_back(loss.item<double>());
    amp.scale(loss).backward();
    EXPECT_FALSE(amp.step(optimizer).skipped());
  }
  return losses;
}

std::string name_of(const Cell& cell) {
  const auto scale = !cell.loss_scale             ? "default"
                     : cell.loss_scale->dynamic() ? "dynamic"
                                                  : std::to_string(cell.loss_scale->value());
  const auto* keep = !cell.keep_batchnorm ? "default" : *cell.keep_batchnorm ? "true" : "false";
  return to_string(cell.level) + ", loss scale " + scale + ", BatchNorm in fp32 " + keep;
}

TEST(CrossProduct, legal_cells_train_alike_and_repeat_bit_for_bit_and_the_others_are_refused) {
  const auto plain = losses_in({OptLevel::O0, std::nullopt, std::nullopt});
  int legal = 0;
  for (const auto& cell : all_cells()) {
    SCOPED_TRACE(name_of(cell));
    if (cell.level == OptLevel::O1 && cell.keep_batchnorm) {
      EXPECT_TRUE(testing::mentions(testing::error_of([&] { losses_in(cell); }), "keep_batchnorm_fp32"));
      continue;
    }
    ++legal;
    const auto losses = losses_in(cell);
    EXPECT_EQ(losses, losses_in(cell));
    EXPECT_LT(losses.back(), losses.front());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], plain[i], cell.level == OptLevel::O0 ? 1e-6 : 0.03);
    }
  }
  EXPECT_EQ(legal, 40);
}

}  // namespace
}  // namespace lockstep::amp
