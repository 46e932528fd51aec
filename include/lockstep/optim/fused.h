// SPDX-License-Identifier: Apache-2.0
// What Lockstep's optimizers have in common: one pass over memory that unscales, skips, clips, updates moments and fp32
// masters, and writes the low precision weights, steered by values that stay on the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/export.h"
#include "lockstep/optim/scaled_step.h"

namespace lockstep::optim {

class Engine;

/// What a step reads besides parameters and gradients. Each tensor is one fp32 element on the parameters' device, or
/// undefined; it is read on the device, in the order of the current stream.
struct StepInputs {
  at::Tensor grad_scale = {};   // gradients are this many times too large; undefined: they are true
  at::Tensor found_inf = {};    // anything but 0: leave everything as it is, step counts included
  at::Tensor clip_factor = {};  // multiplies the true gradients (see clip_grad.h); undefined: 1
};

/// What torch::optim's options do not have.
struct FusedOptions {
  /// Ascend instead of descend.
  bool maximize = false;
  /// Keep a fp32 master of every fp16 or bf16 parameter. Moments of such parameters are fp32 in any case. Saved with
  /// the optimizer; stock torch::optim classes ignore them when they load the file.
  bool master_weights = false;
  /// Read each group's learning rate from a device tensor, so that a captured step can be replayed with another one.
  /// `step` refreshes it from the group's options; before a replay call `upload_learning_rates`.
  bool capturable = false;
};

/// A tensor that a step uses and that `state()` does not hold.
struct LiveTensor {
  enum class What : std::uint8_t { Master, StepCount, LearningRate };
  What what;
  std::size_t group;
  /// Whose it is; of parameters that share a step count the first. Undefined for a learning rate.
  at::Tensor parameter;
  /// The tensor itself, not a copy. A step count is one int64 element.
  at::Tensor tensor;
};

/// Differences from torch::optim, for all of Lockstep's optimizers:
/// - Parameters without a gradient are left alone, as there. A tensor listed twice is stepped once.
/// - Version counters of everything written are bumped, and autocast's cache of casts is emptied.
/// - Gradients are not written: after a step they still hold what backward left there.
/// - Sparse and complex parameters or gradients, and parameters that share memory, are refused with InputError.
/// - Options of another class than the optimizer's in a group are refused with InputError.
/// - load() either loads everything or throws InputError and changes nothing.
class LOCKSTEP_API FusedOptimizer : public MasterOptimizer {
 public:
  ~FusedOptimizer() override;

  /// One step with `inputs`. Throws InputError, before anything is written, if a tensor does not fit.
  void step_fused(const StepInputs& inputs);

  void step_scaled(const at::Tensor& grad_scale, const at::Tensor& found_inf) override;
  void set_master_pairs(std::vector<MasterPair> pairs) override;

  /// fp32 master of a 16-bit parameter: of its pair, or the optimizer's own. Undefined where there is none (yet: own
  /// masters are made at the first step).
  at::Tensor master(const at::Tensor& parameter) const;

  /// Gives the optimizer's own master of `parameter` a value (any floating dtype, the parameter's shape). It counts
  /// only where it rounds to the parameter's value: elsewhere the next step takes the parameter's.
  void set_master(const at::Tensor& parameter, const at::Tensor& value);

  /// Copies step counts from the device into `state()`, where a skipped step or a replayed graph leaves them behind.
  /// Waits for the device; on CPU they are never behind. save() calls it.
  void sync_steps();

  /// FusedOptions::capturable.
  bool capturable() const;

  /// Own masters, step counts and (see FusedOptions::capturable) learning rates where they live, for code that compares
  /// or copies optimizers. In the order of the groups; what the steps so far had no need of is left out. No wait.
  std::vector<LiveTensor> live_tensors() const;

  /// Writes every group's learning rate to the device tensors that a captured step reads. No wait.
  void upload_learning_rates();

 protected:
  explicit FusedOptimizer(std::unique_ptr<Engine> engine);
  Engine& engine() const { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
};

/// Joins a torch::optim class and the fused step. State, options and checkpoints are the torch class's own.
template <class Base, class Options>
class LOCKSTEP_API Fused : public Base, public FusedOptimizer {
 public:
  using LossClosure = torch::optim::Optimizer::LossClosure;

  explicit Fused(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults,
                 FusedOptions fused = {});
  explicit Fused(std::vector<at::Tensor> parameters, Options defaults, FusedOptions fused = {});

  // The engine refers to this object.
  Fused(Fused&&) = delete;
  Fused& operator=(Fused&&) = delete;

  /// Evaluates `closure`, if given, with gradients enabled; takes one step; returns the closure's loss.
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// As torch's, and throws InputError if the group's options are of another class or out of range.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
};

}  // namespace lockstep::optim
