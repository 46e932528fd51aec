// SPDX-License-Identifier: Apache-2.0
// Against Python's DistributedDataParallel: the same models, seeds and ranks as tests/golden/data_parallel.py, whose
// output holds the losses and parameters after each step, and the tolerance of each case.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "ddp/trials.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::random;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr int kGoldenRanks = 2;
constexpr int kGoldenSteps = 5;
constexpr std::int64_t kGoldenPerRank = 4;

struct GoldenFile {
  std::map<std::string, double> tolerance;
  std::map<std::string, std::vector<std::vector<double>>> steps;  // case: per step both losses, then all values

  GoldenFile() {
    std::ifstream file(std::string(LOCKSTEP_GOLDEN) + "/data_parallel.txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name;
      std::string key;
      words >> name >> key;
      if (name == "tolerance") {
        words >> tolerance[key];
      } else if (name != "#") {
        auto& values = steps[name].emplace_back();
        for (double value = 0; words >> value;) {
          values.push_back(value);
        }
      }
    }
  }
};

/// What a case trains, on one rank.
struct GoldenCase {
  std::vector<at::Tensor> parameters;
  ModelTensors tensors;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::function<at::Tensor(int step)> loss;
  int window = 1;
  std::optional<at::ScalarType> wire = std::nullopt;
  DataParallelOptions options = {};
};

at::Tensor rows_of(const at::Tensor& joined, int rank) {
  return test::share(joined, rank, kGoldenPerRank);
}

at::Tensor regression_loss(const std::function<at::Tensor(const at::Tensor&)>& forward, int step, int rank) {
  const auto seed = static_cast<std::uint64_t>(step);
  const auto x = rows_of(random({kGoldenRanks * kGoldenPerRank, 2}, 500 + seed), rank);
  const auto y = rows_of(random({kGoldenRanks * kGoldenPerRank, 1}, 600 + seed), rank);
  return (forward(x) - y).square().mean();
}

using MakeOptimizer = std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

MakeOptimizer sgd(double momentum, double decay = 0) {
  return [=](const std::vector<at::Tensor>& parameters) {
    return std::make_shared<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.1).momentum(momentum).weight_decay(decay));
  };
}

std::shared_ptr<torch::optim::Optimizer> adam(const std::vector<at::Tensor>& parameters) {
  return std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.05));
}

std::uint64_t seed_of(int rank) {
  return 3 + 17 * static_cast<std::uint64_t>(rank);
}

GoldenCase regression(Sequential net, int rank, const MakeOptimizer& make) {
  test::fill_parameters(net->parameters(), seed_of(rank));
  return {.parameters = net->parameters(),
          .tensors = ddp::tensors_of(*net),
          .optimizer = make(net->parameters()),
          .loss = [net, rank](int step) mutable {
            return regression_loss([&](const at::Tensor& x) { return net->forward(x); }, step, rank);
          }};
}

Sequential golden_mlp() {
  return Sequential(Linear(2, 3), torch::nn::Tanh(), Linear(3, 3), torch::nn::Tanh(), Linear(3, 1));
}

GoldenCase branches(int rank) {
  std::array<Linear, 3> layers = {Linear(2, 1), Linear(2, 1), Linear(2, 1)};
  GoldenCase made;
  for (const auto& layer : layers) {
    made.parameters.insert(made.parameters.end(), {layer->weight, layer->bias});
  }
  test::fill_parameters(made.parameters, seed_of(rank));
  made.tensors = test::named(made.parameters);
  made.optimizer = sgd(0.9, 0.1)(made.parameters);
  made.loss = [layers, rank](int step) mutable {
    const auto forward = [&](const at::Tensor& x) {
      auto y = layers[0]->forward(x);
      y = rank == 0 && step % 2 == 0 ? y + layers[1]->forward(x) : y;
      return step % 3 == 0 ? y + layers[2]->forward(x) : y;
    };
    return regression_loss(forward, step, rank);
  };
  made.options.unused = UnusedParameters::Detect;
  return made;
}

GoldenCase tied(int rank) {
  torch::nn::Embedding table(5, 3);
  Linear hidden(3, 3);
  GoldenCase made;
  made.parameters = {table->weight, hidden->weight, hidden->bias};
  test::fill_parameters(made.parameters, seed_of(rank));
  made.tensors = test::named({table->weight, hidden->weight, hidden->bias, table->weight});
  made.optimizer = sgd(0.9)(made.parameters);
  made.loss = [table, hidden, rank](int step) mutable {
    const auto words = (at::arange(kGoldenRanks * kGoldenPerRank, at::kLong) * (step + 2)).remainder(5);
    const auto h = at::tanh(hidden->forward(table->forward(rows_of(words, rank))));
    return at::log_softmax(at::linear(h, table->weight), 1).square().mean();
  };
  return made;
}

GoldenCase with_window(GoldenCase made, int window) {
  made.window = window;
  return made;
}

GoldenCase with_wire(GoldenCase made, at::ScalarType wire) {
  made.wire = wire;
  return made;
}

const std::map<std::string, std::function<GoldenCase(int rank)>>& golden_cases() {
  static const std::map<std::string, std::function<GoldenCase(int)>> cases = {
      {"sgd", [](int rank) { return regression(golden_mlp(), rank, sgd(0.9)); }},
      {"adam", [](int rank) { return regression(golden_mlp(), rank, adam); }},
      {"unused", branches},
      {"no_sync", [](int rank) { return with_window(regression(golden_mlp(), rank, sgd(0.9)), 2); }},
      {"fp16_hook", [](int rank) { return with_wire(regression(golden_mlp(), rank, sgd(0)), at::kHalf); }},
      {"bf16_hook", [](int rank) { return with_wire(regression(golden_mlp(), rank, sgd(0)), at::kBFloat16); }},
      {"tied", tied},
      {"batch_norm",
       [](int rank) {
         return regression(Sequential(Linear(2, 3), torch::nn::BatchNorm1d(3), Linear(3, 1)), rank, sgd(0));
       }},
  };
  return cases;
}

double train_window(GoldenCase& model, const DataParallelBase& wrapper, int step) {
  model.optimizer->zero_grad();
  double loss = 0;
  for (int micro = 0; micro < model.window; ++micro) {
    std::optional<DataParallelBase::NoSync> quiet;
    if (micro + 1 < model.window) {
      quiet.emplace(wrapper.no_sync());
    }
    const auto part = model.loss(step * model.window + micro) / model.window;
    part.backward();
    loss += part.item<double>();
  }
  model.optimizer->step();
  return loss;
}

std::vector<double> values_of(const GoldenCase& model) {
  std::vector<double> values;
  auto all = model.parameters;
  for (const auto& buffer : model.tensors.buffers) {
    if (buffer.tensor.is_floating_point()) {
      all.push_back(buffer.tensor);
    }
  }
  for (const auto& tensor : all) {
    const auto flat = tensor.detach().reshape({-1}).to(at::kDouble);
    values.insert(values.end(), flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
  }
  return values;
}

void expect_row(const std::vector<double>& row, double loss, int rank, const std::vector<double>& values,
                double tolerance) {
  ASSERT_EQ(row.size(), values.size() + kGoldenRanks);
  EXPECT_NEAR(loss, row[static_cast<std::size_t>(rank)], tolerance * (1 + loss));
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], row[i + kGoldenRanks], tolerance) << "value " << i;
  }
}

class GoldenDdp : public testing::TestWithParam<std::string> {};

TEST_P(GoldenDdp, equals_pythons) {
  const auto name = GetParam();
  const GoldenFile golden;
  ASSERT_TRUE(golden.tolerance.count(name) == 1 && golden.steps.count(name) == 1);
  ASSERT_EQ(golden.steps.at(name).size(), static_cast<std::size_t>(kGoldenSteps));
  test::run(kGoldenRanks, [&](World& world) {
    auto model = golden_cases().at(name)(world.rank());
    DataParallelBase wrapper(model.tensors, world, model.options);
    if (model.wire) {
      wrapper.register_comm_hook(compress_hook(world, *model.wire));
    }
    for (int step = 0; step < kGoldenSteps; ++step) {
      SCOPED_TRACE(name + ", step " + std::to_string(step) + ", rank " + std::to_string(world.rank()));
      const auto loss = train_window(model, wrapper, step);
      EXPECT_EQ(wrapper.difference(), "");
      expect_row(golden.steps.at(name)[static_cast<std::size_t>(step)], loss, world.rank(), values_of(model),
                 golden.tolerance.at(name));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenDdp,
                         testing::Values("sgd", "adam", "unused", "no_sync", "fp16_hook", "bf16_hook", "tied",
                                         "batch_norm"),
                         [](const auto& chosen) { return chosen.param; });

}  // namespace
}  // namespace lockstep
