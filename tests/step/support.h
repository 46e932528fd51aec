// SPDX-License-Identifier: Apache-2.0
// A small model, its data, and what a training run leaves behind.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "support/models.h"

namespace lockstep::test {

/// Two layers with weights that depend on `seed` alone.
struct Mlp : torch::nn::Module {
  torch::nn::Linear first;
  torch::nn::Linear last;

  explicit Mlp(std::uint64_t seed = 1, std::int64_t width = 8)
      : first(register_module("first", torch::nn::Linear(4, width))),
        last(register_module("last", torch::nn::Linear(width, 2))) {
    fill_parameters(parameters(), seed, 0.5);
  }
  at::Tensor forward(const at::Tensor& x) { return last(first(x).relu()); }
};

inline at::Tensor inputs_of(std::int64_t index, std::int64_t rows = 6) {
  return random({rows, 4}, 1000 + static_cast<std::uint64_t>(index));
}
inline at::Tensor targets_of(std::int64_t index, std::int64_t rows = 6) {
  return random({rows, 2}, 2000 + static_cast<std::uint64_t>(index));
}
inline at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return (output.to(at::kFloat) - target).square().mean();
}

inline std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> values;
  for (const auto& tensor : tensors) {
    values.push_back(tensor.detach().cpu().clone());
  }
  return values;
}

inline void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted,
                         const std::string& what, double tolerance = 0) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto difference = (got[i].to(at::kDouble) - wanted[i].to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << what << ", tensor " << i;
  }
}

}  // namespace lockstep::test
