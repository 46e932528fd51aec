// SPDX-License-Identifier: Apache-2.0
// One optimizer of an Amp: the masters in its groups and what its gradients have gone through since its last step.
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <vector>

#include "amp/masters.h"

namespace torch::optim {
class Optimizer;
}
namespace lockstep::optim {
class FusedOptimizer;
class ScaledOptimizer;
class MasterOptimizer;
struct StepInputs;
}  // namespace lockstep::optim

namespace lockstep::amp {

enum class Stage : std::uint8_t { Scaled, Unscaled };

class Binding {
 public:
  /// `persistent`: masters keep their value from step to step; else they are fp32 copies for one step, so that a stock
  /// optimizer's arithmetic is in fp32 whatever the parameters are.
  Binding(torch::optim::Optimizer& optimizer, Masters& masters, std::string name, bool persistent);

  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  optim::ScaledOptimizer* scaled() const { return scaled_; }
  optim::FusedOptimizer* fused() const { return fused_; }
  const MasterList& masters() const { return list_; }
  bool persistent() const { return persistent_; }

  /// Low precision parameters in the groups that should have masters and have none (yet).
  std::vector<at::Tensor> without_masters() const;

  /// Puts masters in the place of low precision parameters, those of groups added since included, and drops the
  /// gradients that the user has zeroed through the optimizer, which only knows the masters.
  void prepare();

  /// True if a parameter, or a master after `unscale`, has a gradient.
  bool has_gradients() const;

  /// Gives the masters gradients: true to be unscaled, in fp32, or the parameters' own for a pass that unscales.
  void make_gradients();
  void lend_gradients();

  /// The optimizer's step; left out where `found_inf` says so. Only fused optimizers take a clip factor, only scaled
  /// ones a scale.
  void take_step(const optim::StepInputs& inputs);
  /// Drops all gradients and begins anew.
  void finish();
  /// The same where there are none.
  void restart();
  void zero_grad(bool set_to_none);
  /// Scales all gradients by one fp32 element.
  void multiply_gradients(const at::Tensor& factor);

  Stage stage = Stage::Scaled;
  at::Tensor found_inf;    // after unscale
  int loss_id = 0;         // the scale that gradients have now
  std::set<int> loss_ids;  // the scales that went into them

 private:
  /// Tied parameters, which LibTorch lists once for each module, are kept once: they would be stepped twice.
  void take_in_groups();
  void adopt(std::vector<at::Tensor>& group, std::size_t group_index);
  void move_state(const at::Tensor& from, const at::Tensor& to);
  bool zeroed_through_optimizer() const;
  void drop_gradients();
  void arm();

  torch::optim::Optimizer& optimizer_;
  Masters& masters_;
  std::string name_;
  bool persistent_;
  optim::ScaledOptimizer* scaled_;
  optim::FusedOptimizer* fused_;
  optim::MasterOptimizer* master_optimizer_;
  MasterList list_;
  std::size_t seen_ = 0;  // parameters in the groups when last looked at

  // Stands in each master's .grad between steps. It has no elements: zeroing the optimizer takes it away or bumps its
  // version, and stepping the optimizer past the Amp is an error rather than a step without gradients.
  at::Tensor sentinel_;
  std::int64_t sentinel_version_ = 0;
  bool lent_ = false;  // some master got a gradient from make_gradients
};

}  // namespace lockstep::amp
