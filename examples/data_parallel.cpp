// SPDX-License-Identifier: Apache-2.0
// A network learns the sine from 4,096 samples, on any number of ranks, each of which sees its share of them.
//
//   $ lockstep run -n 2 data_parallel
//   [0] epoch 0: loss 0.0120
//   ...
//   [0] RESULT loss=0.0004 ranks=2 replicas_equal=true
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <lockstep/comm/launch.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/ddp/data_parallel.h>
#include <lockstep/optim/adam.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>

namespace nn = torch::nn;

namespace {

constexpr int kSamples = 4096;
constexpr int kEpochs = 10;
constexpr std::size_t kGlobalBatch = 64;

// Every rank makes the same samples: the sampler decides who trains on which.
std::pair<at::Tensor, at::Tensor> make_samples(c10::Device device) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto x = at::rand({kSamples, 1}, generator).mul_(6).sub_(3).to(device);
  return {x, at::sin(x)};
}

at::Tensor to_tensor(const std::vector<std::size_t>& indices, c10::Device device) {
  auto tensor = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor.to(device);
}

void train(lockstep::World& world) {
  // Ranks may begin with different weights: wrapping copies rank 0's to all.
  at::manual_seed(static_cast<std::uint64_t>(world.rank()));
  nn::Sequential net(nn::Linear(1, 64), nn::Tanh(), nn::Linear(64, 1));
  net->to(world.device());
  lockstep::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  lockstep::DistributedDataParallel ddp(net, world);

  const auto [x, y] = make_samples(world.device());
  lockstep::data::DistributedSampler sampler(kSamples, world);
  const auto batch = kGlobalBatch / static_cast<std::size_t>(world.size());

  at::Tensor loss;
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    while (const auto indices = sampler.next(batch)) {
      const auto rows = to_tensor(*indices, world.device());
      loss = at::mse_loss(ddp.forward(x.index_select(0, rows)), y.index_select(0, rows));
      optimizer.zero_grad();
      loss.backward();  // gradients are averaged over all ranks while this runs
      optimizer.step();
    }
    world.all_reduce(loss.detach_(), lockstep::ReduceOp::Average).wait();
    if (world.rank() == 0) {
      std::printf("epoch %d: loss %.4f\n", static_cast<int>(epoch), loss.item<double>());
      std::fflush(stdout);
    }
  }

  const auto difference = ddp.difference();  // compares all ranks bit by bit
  if (world.rank() == 0) {
    std::printf("RESULT loss=%.4f ranks=%d replicas_equal=%s\n", loss.item<double>(), world.size(),
                difference.empty() ? "true" : "false");
  }
}

}  // namespace

int main() {
  return lockstep::run_main(train);
}
