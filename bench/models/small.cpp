// SPDX-License-Identifier: Apache-2.0
#include "models/small.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>

#include "lockstep/nn/linear.h"

namespace lockstep::bench {

namespace nn = torch::nn;
using lockstep::nn::Linear;

WithMseImpl::WithMseImpl(nn::Sequential body) : body_(register_module("body", std::move(body))) {}

at::Tensor WithMseImpl::forward(const at::Tensor& x, const at::Tensor& y) {
  return at::mse_loss(body_->forward(x).to(at::kFloat), y.to(at::kFloat));
}

WithMse mlp() {
  return WithMse(nn::Sequential(Linear(128, 512), nn::ReLU(), Linear(512, 128)));
}

WithMse linear() {
  return WithMse(nn::Sequential(Linear(1024, 16)));
}

}  // namespace lockstep::bench
