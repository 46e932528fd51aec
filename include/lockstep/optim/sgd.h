// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/sgd.h>

#include "lockstep/optim/fused.h"

namespace lockstep::optim {

/// torch::optim::SGD in one pass, with momentum, dampening, Nesterov's look-ahead and weight decay. fp32 and fp64
/// results equal torch's bit for bit where the CPU has fused multiply-add (ATen's vector code then rounds once, and so
/// does this).
class LOCKSTEP_API SGD : public Fused<torch::optim::SGD, torch::optim::SGDOptions> {
 public:
  explicit SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, torch::optim::SGDOptions defaults,
               FusedOptions fused = {})
      : Fused(groups, std::move(defaults), fused) {}
  explicit SGD(std::vector<at::Tensor> parameters, torch::optim::SGDOptions defaults, FusedOptions fused = {})
      : Fused(std::move(parameters), std::move(defaults), fused) {}
};

}  // namespace lockstep::optim
