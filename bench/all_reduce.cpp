// SPDX-License-Identifier: Apache-2.0
// All-reduces of 1 KiB to 256 MiB (on a CPU to 16 MiB) in fp32, one after the other: a JSON line a size, printed by
// rank 0. A rank of a world made from the environment; bench/all_reduce.py starts the ranks, the Python peer, and
// compares.
#include <ATen/ATen.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "lockstep/comm/launch.h"
#include "lockstep/comm/world.h"

namespace {

using lockstep::World;

constexpr int kBlocks = 5;
constexpr std::int64_t kSmallest = 1 << 10;
constexpr std::int64_t kBytesABlock = 64 << 20;  // enough calls of a small message, few of a large one

double microseconds_a_call(const World& world, const at::Tensor& data, std::int64_t calls) {
  const auto settle = [&] {
    if (data.is_cuda()) {
      torch::cuda::synchronize();
    }
  };
  world.barrier();
  settle();
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < calls; ++i) {
    world.all_reduce(data).wait();
  }
  settle();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(calls);
}

double median_of_blocks(const World& world, const at::Tensor& data) {
  const auto bytes = static_cast<std::int64_t>(data.nbytes());
  const auto calls = std::clamp<std::int64_t>(kBytesABlock / bytes, 4, data.is_cuda() ? 500 : 100);
  microseconds_a_call(world, data, 3);
  std::vector<double> blocks;
  for (int block = 0; block < kBlocks; ++block) {
    blocks.push_back(microseconds_a_call(world, data, calls));
  }
  std::sort(blocks.begin(), blocks.end());
  return blocks[kBlocks / 2];
}

void run(World& world) {
  const bool cuda = world.device().is_cuda();
  const std::int64_t largest = cuda ? 256 << 20 : 16 << 20;
  for (std::int64_t bytes = kSmallest; bytes <= largest; bytes *= 4) {
    const auto data = at::zeros({bytes / 4}, at::TensorOptions(world.device()).dtype(at::kFloat));
    const auto time = median_of_blocks(world, data);
    if (world.rank() == 0) {
      std::printf("{\"case\": \"%lld\", \"us\": %.2f}\n", static_cast<long long>(bytes), time);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
