// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <tuple>

#include "lockstep/export.h"
#include "lockstep/optim/fused.h"

namespace lockstep::optim {

struct LOCKSTEP_API LambOptions : public torch::optim::OptimizerCloneableOptions<LambOptions> {
  LambOptions(double lr = 1e-3);
  TORCH_ARG(double, lr) = 1e-3;
  typedef std::tuple<double, double> betas_t;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  /// Added to the direction, as in AdamW.
  TORCH_ARG(double, weight_decay) = 0.01;
  /// Scale steps by the ratio of norms where weight_decay is 0 too. (Without decay, such a group takes plain steps.)
  TORCH_ARG(bool, always_adapt) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(const double lr) override;
};

struct LOCKSTEP_API LambParamState : public torch::optim::OptimizerCloneableParamState<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// LAMB as torch::optim would have it: a loop over tensors, one operation after the other.
class LOCKSTEP_API PlainLamb : public torch::optim::Optimizer {
 public:
  /// Throws InputError if options are out of range.
  explicit PlainLamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, LambOptions defaults = {});
  explicit PlainLamb(std::vector<at::Tensor> parameters, LambOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

/// LAMB for large batches, fused: each tensor's step is Adam's direction, scaled by the norm of the tensor over that of
/// the direction. Clip the global norm with clip_factor, as the paper does. https://arxiv.org/abs/1904.00962
///
/// A tensor must be whole: on a shard of it the norms would be the shard's.
class LOCKSTEP_API Lamb : public Fused<PlainLamb, LambOptions> {
 public:
  explicit Lamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, LambOptions defaults = {},
                FusedOptions fused = {})
      : Fused(groups, std::move(defaults), fused) {}
  explicit Lamb(std::vector<at::Tensor> parameters, LambOptions defaults = {}, FusedOptions fused = {})
      : Fused(std::move(parameters), std::move(defaults), fused) {}
};

}  // namespace lockstep::optim
