// SPDX-License-Identifier: Apache-2.0
// The fused step of one optimizer: gathers what has a gradient, gives it state, plans spans, runs the passes.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "lockstep/optim/fused.h"
#include "optim/clocks.h"
#include "optim/schema.h"
#include "optim/storage.h"

namespace lockstep::optim {

struct DeviceWork;

/// What the engine knows of a parameter beside torch's state.
struct Slot {
  explicit Slot(const at::Tensor& parameter) : owner(parameter.getIntrusivePtr()) {}

  // A weak reference keeps the address from being given to another tensor, so that nobody inherits this state.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> owner;
  at::Tensor master;  // own fp32 master
  ClockHandle clock;
  std::int64_t mirrored = 0;  // the step count that torch's state was last given
  std::uint64_t serial = 0;   // last step it was gathered for
};

/// A parameter that takes the current step.
struct Item {
  const at::Tensor* parameter;  // in the optimizer's group
  const at::Tensor* gradient;
  const at::Tensor* weight;  // what the update works on: the parameter or its master
  const at::Tensor* copy;    // low precision copy of the weight, or null
  std::size_t group;
  Slot* slot;
  torch::optim::OptimizerParamState* state;  // null where the update has none
  std::array<at::Tensor*, kMaxStates> states;
};

class Engine {
 public:
  /// While it lives, parameters that have not taken a step yet (the first was skipped) have no state: to a stock
  /// optimizer that reads a checkpoint, a state means a step.
  class Unborn {
   public:
    explicit Unborn(Engine& engine);
    ~Unborn();
    Unborn(const Unborn&) = delete;
    Unborn& operator=(const Unborn&) = delete;

   private:
    Engine& engine_;
    std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>> taken_;
  };

  Engine(torch::optim::Optimizer& owner, std::unique_ptr<Schema> schema, FusedOptions options);

  void step(const StepInputs& inputs);
  void sync_steps();

  void set_pairs(std::vector<MasterPair> pairs);
  at::Tensor master(const at::Tensor& parameter) const;
  void set_master(const at::Tensor& parameter, const at::Tensor& value);

  /// The device tensor a captured step reads; made at the first call.
  at::Tensor& learning_rate(std::size_t group, c10::Device device);
  void upload_learning_rates();

  std::vector<LiveTensor> live_tensors() const;

  /// Own masters by their place in the groups' concatenated lists; undefined where there is none.
  std::vector<at::Tensor> masters() const;

  /// Puts loaded state, options and masters (may be empty) in place of all that is here.
  void replace(torch::optim::Optimizer& loaded, const std::vector<at::Tensor>& masters);

  const Schema& schema() const { return *schema_; }
  const FusedOptions& options() const { return options_; }
  torch::optim::Optimizer& owner() const { return owner_; }

 private:
  std::vector<Item> gather();
  Item make_item(const at::Tensor& parameter, std::size_t group, Slot& slot);
  void give_clocks(std::vector<Item>& items);
  void give_storage(std::vector<Item>& items);
  void add_ticks(DeviceWork& work, const Signals& signals);
  void finish(const std::vector<Item>& items);
  Slot& slot_of(const at::Tensor& parameter);
  void forget_the_dead();

  torch::optim::Optimizer& owner_;
  std::unique_ptr<Schema> schema_;
  FusedOptions options_;
  std::uint64_t serial_ = 0;
  std::vector<Recipe> recipes_;  // one a group, read anew each step
  Clocks clocks_;
  std::unordered_map<c10::TensorImpl*, Slot> slots_;
  std::unordered_map<c10::TensorImpl*, MasterPair> pairs_;
  std::vector<at::Tensor> learning_rates_;
};

}  // namespace lockstep::optim
