// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/sequential.h>

namespace lockstep::bench {

/// Any network, with the mean squared error as its loss. Its parameters are named `body.*`.
class WithMseImpl : public torch::nn::Module {
 public:
  explicit WithMseImpl(torch::nn::Sequential body);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y);

 private:
  torch::nn::Sequential body_;
};
TORCH_MODULE(WithMse);

/// 128 - 512 - 128 with a ReLU.
WithMse mlp();
/// 1024 - 16.
WithMse linear();

}  // namespace lockstep::bench
