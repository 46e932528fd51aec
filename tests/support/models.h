// SPDX-License-Identifier: Apache-2.0
// Small models and inputs whose values depend on a seed alone, so that ranks and references can be given what a test
// wants, without the process's shared random generators.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace lockstep::test {

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator);
}

/// Overwrites every parameter with numbers that depend on `seed` and the parameter's place.
inline void fill_parameters(const std::vector<at::Tensor>& parameters, std::uint64_t seed, double scale = 0.3) {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].copy_(random(parameters[i].sizes(), seed * 1000 + i) * scale);
  }
}

inline torch::nn::Sequential mlp(std::uint64_t seed, std::int64_t in = 6, std::int64_t hidden = 10,
                                 std::int64_t out = 3) {
  torch::nn::Sequential net(torch::nn::Linear(in, hidden), torch::nn::Tanh(), torch::nn::Linear(hidden, hidden),
                            torch::nn::Tanh(), torch::nn::Linear(hidden, out));
  fill_parameters(net->parameters(), seed);
  return net;
}

/// Rows [rank * per_rank, (rank + 1) * per_rank) of the joined batch.
inline at::Tensor share(const at::Tensor& joined, int rank, std::int64_t per_rank) {
  return joined.narrow(0, rank * per_rank, per_rank);
}

}  // namespace lockstep::test
