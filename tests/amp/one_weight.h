// SPDX-License-Identifier: Apache-2.0
// The smallest model that masters can be tested with.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "lockstep/amp/opt_level.h"

namespace lockstep::amp::testing {

/// One weight; the loss is weight * gradient.
struct OneImpl : torch::nn::Module {
  at::Tensor weight;
  explicit OneImpl(float value = 1, int64_t n = 1) { weight = register_parameter("weight", at::full({n}, value)); }
  at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(); }
};
TORCH_MODULE(One);

inline void iterate(Amp& amp, torch::optim::Optimizer& optimizer, One& net, double gradient) {
  amp.scale(amp.forward(net, at::full({1}, gradient))).backward();
  amp.step(optimizer);
}

inline float weight_of(const One& net) {
  return net->weight[0].item<float>();
}

}  // namespace lockstep::amp::testing
