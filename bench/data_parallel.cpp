// SPDX-License-Identifier: Apache-2.0
// One training step alone, with an all-reduce by hand, and with DistributedDataParallel: a JSON line a case, printed by
// rank 0. A rank of a world made from the environment; bench/data_parallel.py starts both ranks, the Python peer, and
// compares.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"

namespace {

using lockstep::DistributedDataParallel;
using lockstep::World;
using torch::nn::Sequential;
using Step = std::function<void()>;

constexpr int kBlocks = 5;

/// Microseconds a step: of the clock on the wall, and of this process's CPU time, all its threads together.
struct Cost {
  double wall;
  double cpu;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Cost cost_of(const Step& step, int steps) {
  const auto wall = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  for (int i = 0; i < steps; ++i) {
    step();
  }
  const double scale = 1e6 / steps;
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count() * scale,
          (cpu_seconds() - cpu) * scale};
}

Cost median(std::vector<Cost> costs) {
  const auto middle = costs.size() / 2;
  std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.wall < b.wall; });
  const double wall = costs[middle].wall;
  std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.cpu < b.cpu; });
  return {wall, costs[middle].cpu};
}

/// The ways to take one step: on one's own, with one all-reduce of all gradients' bytes after it, and wrapped.
struct Ways {
  Step alone;
  Step by_hand;
  Step wrapped;
};

/// All in turns, so that whatever else the machine does hits each of them.
void measure(const World& world, const std::string& name, int steps, const Ways& ways) {
  const std::vector<std::pair<const char*, Step>> named = {
      {"alone", ways.alone}, {"by_hand", ways.by_hand}, {"wrapped", ways.wrapped}};
  std::vector<std::vector<Cost>> costs(named.size());
  for (int block = -1; block < kBlocks; ++block) {
    for (std::size_t way = 0; way < named.size(); ++way) {
      world.barrier();
      const auto cost = cost_of(named[way].second, steps);
      if (block >= 0) {  // the first round warms up
        costs[way].push_back(cost);
      }
    }
  }
  if (world.rank() > 0) {
    return;
  }
  std::printf("{\"case\": \"%s\"", name.c_str());
  for (std::size_t way = 0; way < named.size(); ++way) {
    const auto cost = median(costs[way]);
    std::printf(", \"%s\": %.1f, \"%s_cpu\": %.1f", named[way].first, cost.wall, named[way].first, cost.cpu);
  }
  std::printf("}\n");
  std::fflush(stdout);
}

/// Many tiny parameters: nothing but overhead.
struct Chain : torch::nn::Module {
  explicit Chain(int count) {
    for (int i = 0; i < count; ++i) {
      links.push_back(register_parameter("p" + std::to_string(i), at::ones({16})));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& link : links) {
      x = x * link;
    }
    return x;
  }
  std::vector<at::Tensor> links;
};

void overhead(const World& world, int count, int steps) {
  const auto alone = std::make_shared<Chain>(count);
  const auto inner = std::make_shared<Chain>(count);
  DistributedDataParallel ddp(inner, world);
  const auto x = at::ones({16});
  const auto bytes = at::ones({16 * count});
  const auto step = [&x](auto& module, auto& forward) {
    module.zero_grad();
    forward.forward(x).sum().backward();
  };
  const Step on_its_own = [&] { step(*alone, *alone); };
  const Step by_hand = [&] {
    on_its_own();
    world.all_reduce(bytes).wait();
  };
  measure(world, "parameters_" + std::to_string(count), steps, {on_its_own, by_hand, [&] { step(*inner, ddp); }});
}

std::int64_t gradient_elements(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

void training(const World& world, const std::string& name, int steps, Sequential alone, Sequential inner,
              const at::Tensor& x, const at::Tensor& target) {
  DistributedDataParallel ddp(inner, world);
  torch::optim::SGD alone_sgd(alone->parameters(), torch::optim::SGDOptions(0.01));
  torch::optim::SGD sgd(inner->parameters(), torch::optim::SGDOptions(0.01));
  const auto step = [&](auto& model, torch::optim::SGD& optimizer) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model.forward(x), target).backward();
    optimizer.step();
  };
  const auto bytes = at::ones({gradient_elements(*alone)});
  const Step on_its_own = [&] { step(*alone, alone_sgd); };
  const Step by_hand = [&] {
    on_its_own();
    world.all_reduce(bytes).wait();
  };
  measure(world, name, steps, {on_its_own, by_hand, [&] { step(ddp, sgd); }});
}

Sequential mlp() {
  using torch::nn::Linear;
  using torch::nn::ReLU;
  return Sequential(Linear(256, 512), ReLU(), Linear(512, 512), ReLU(), Linear(512, 10));
}

Sequential cnn() {
  using torch::nn::Conv2d;
  using torch::nn::Conv2dOptions;
  using torch::nn::ReLU;
  return Sequential(Conv2d(Conv2dOptions(1, 16, 3).stride(2)), ReLU(), Conv2d(Conv2dOptions(16, 32, 3).stride(2)),
                    ReLU(), torch::nn::Functional([](const at::Tensor& t) { return t.flatten(1); }),
                    torch::nn::Linear(32 * 6 * 6, 10));
}

void run(World& world) {
  at::set_num_threads(1);
  overhead(world, 4, 400);
  overhead(world, 64, 150);
  overhead(world, 512, 30);
  const auto target = at::arange(32, at::kLong).remainder(10);
  training(world, "mlp", 100, mlp(), mlp(), at::randn({32, 256}), target);
  training(world, "cnn", 60, cnn(), cnn(), at::randn({32, 1, 28, 28}), target);
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
