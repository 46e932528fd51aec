// SPDX-License-Identifier: Apache-2.0
// Numbers that Python's BatchNorm gave for the whole batch (tests/golden/sync_batch_norm.py).
#include <fstream>
#include <map>
#include <sstream>

#include "nn/nn_testing.h"

namespace lockstep {
namespace {

using test::Sizes;
using Golden = std::map<std::string, at::Tensor>;

Golden golden_numbers() {
  Golden all;
  std::ifstream file(std::string(LOCKSTEP_GOLDEN) + "/sync_batch_norm.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<double> numbers;
    for (double number = 0; words >> number;) {
      numbers.push_back(number);
    }
    all.emplace(name, at::tensor(numbers, at::kDouble));
  }
  return all;
}

at::Tensor golden_values(const Sizes& shape, double shift) {
  const auto i = at::arange(at::zeros(shape).numel(), at::kDouble);
  return (at::sin(i * 0.7 + shift) * 2 + (at::remainder(i, 7) - 3) * 0.25).view(shape);
}

const std::map<std::string, Sizes> kGoldenShapes{
    {"1d", {5, 3}}, {"1d_long", {5, 3, 2}}, {"2d", {5, 3, 2, 1}}, {"3d", {5, 3, 1, 2, 1}}};

std::map<std::string, nn::SyncBatchNormOptions> golden_options() {
  using Options = nn::SyncBatchNormOptions;
  return {{"default", Options(3)},
          {"cumulative", Options(3).momentum(std::nullopt)},
          {"frozen", Options(3).momentum(0.0)},
          {"fast", Options(3).momentum(0.7).eps(0.25)},
          {"no_affine", Options(3).affine(false)},
          {"no_tracking", Options(3).track_running_stats(false)}};
}

/// Three steps and an evaluation with this rank's rows of each batch.
void compare_with_python(const World& world, const Golden& all, const std::string& name,
                         const nn::SyncBatchNormOptions& options, const test::Batch& rows) {
  const auto shape = rows.input.sizes().vec();
  nn::SyncBatchNorm module(options, world);
  module->to(at::kDouble);
  if (options.affine()) {
    const at::NoGradGuard no_grad;
    module->weight.copy_(at::tensor({0.5, 0.75, 1.0}));
    module->bias.copy_(at::tensor({-0.25, 0.0, 0.25}));
  }
  const auto mine = [&](const at::Tensor& joined) { return rows.part_of(joined.view(shape), world.rank()); };
  const auto expect = [&](const std::string& what, const at::Tensor& actual, const at::Tensor& expected) {
    test::expect_close(actual, expected, {1e-11, 1e-11}, name + "/" + what);
  };
  test::Results results;
  for (int step = 0; step < 3; ++step) {
    results = test::results_of(*module, mine(golden_values(shape, step)), mine(golden_values(shape, 10 + step)));
  }
  expect("output", results.output, mine(all.at(name + "/output")));
  expect("input_grad", results.input_grad, mine(all.at(name + "/input_grad")));
  if (options.affine()) {
    world.all_reduce(results.weight_grad).wait();
    world.all_reduce(results.bias_grad).wait();
    expect("weight_grad", results.weight_grad, all.at(name + "/weight_grad"));
    expect("bias_grad", results.bias_grad, all.at(name + "/bias_grad"));
  }
  if (options.track_running_stats()) {
    expect("running_mean", results.running_mean, all.at(name + "/running_mean"));
    expect("running_var", results.running_var, all.at(name + "/running_var"));
    expect("batches", results.batches.view(-1), all.at(name + "/num_batches_tracked"));
    module->eval();
    expect("evaluated", module->forward(mine(golden_values(shape, 20))), mine(all.at(name + "/evaluated")));
  }
}

TEST(SyncBatchNormGolden, equals_pythons_numbers) {
  const auto all = golden_numbers();
  ASSERT_EQ(all.size(), 168U);
  for (const Sizes& parts : {Sizes{5}, Sizes{2, 3}, Sizes{5, 0}, Sizes{1, 3, 1}}) {
    test::run(static_cast<int>(parts.size()), [&](World& world) {
      for (const auto& [shape_name, shape] : kGoldenShapes) {
        for (const auto& [option_name, chosen] : golden_options()) {
          compare_with_python(world, all, shape_name + "_" + option_name, chosen, {at::zeros(shape), {}, parts});
        }
      }
    });
  }
}

}  // namespace
}  // namespace lockstep
