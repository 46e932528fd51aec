// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "lockstep/optim/fused.h"

namespace lockstep::optim {

/// torch::optim::Adam in one pass: weight decay is added to the gradient. https://arxiv.org/abs/1412.6980
class LOCKSTEP_API Adam : public Fused<torch::optim::Adam, torch::optim::AdamOptions> {
 public:
  explicit Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups, torch::optim::AdamOptions defaults = {},
                FusedOptions fused = {})
      : Fused(groups, std::move(defaults), fused) {}
  explicit Adam(std::vector<at::Tensor> parameters, torch::optim::AdamOptions defaults = {}, FusedOptions fused = {})
      : Fused(std::move(parameters), std::move(defaults), fused) {}
};

/// torch::optim::AdamW in one pass: weight decay shrinks the weight. https://arxiv.org/abs/1711.05101
class LOCKSTEP_API AdamW : public Fused<torch::optim::AdamW, torch::optim::AdamWOptions> {
 public:
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, torch::optim::AdamWOptions defaults = {},
                 FusedOptions fused = {})
      : Fused(groups, std::move(defaults), fused) {}
  explicit AdamW(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions defaults = {}, FusedOptions fused = {})
      : Fused(std::move(parameters), std::move(defaults), fused) {}
};

}  // namespace lockstep::optim
