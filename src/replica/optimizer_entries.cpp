// SPDX-License-Identifier: Apache-2.0
#include "replica/optimizer_entries.h"

#include <ATen/ops/full.h>

#include "core/check.h"
#include "lockstep/optim/fused.h"

namespace lockstep::replica {
namespace {

using core::str;

at::Tensor host_value(double value) {
  return at::full({}, value, at::TensorOptions(at::kCPU).dtype(at::kDouble));
}
at::Tensor host_value(std::int64_t value) {
  return at::full({}, value, at::TensorOptions(at::kCPU).dtype(at::kLong));
}

class Walk {
 public:
  Walk(Entries& entries, Identities& identities, torch::optim::Optimizer& optimizer, std::string prefix)
      : entries_(entries), identities_(identities), optimizer_(optimizer), prefix_(std::move(prefix)) {}

  void run() {
    auto& groups = optimizer_.param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      learning_rate(groups[g], g);
      for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
        parameter(groups[g].params()[i], str(prefix_, "group ", g, " parameter ", i));
      }
    }
    const auto* fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer_);
    const bool counted_on_device = fused != nullptr && live(*fused);
    for (const auto& group : groups) {
      for (const auto& parameter : group.params()) {
        state(parameter, counted_on_device);
      }
    }
  }

 private:
  const std::string& name_of(const at::Tensor& parameter) { return identities_[parameter.unsafeGetTensorImpl()].name; }

  void learning_rate(torch::optim::OptimizerParamGroup& group, std::size_t g) {
    if (group.has_options()) {
      entries_.push_back({StateKind::LearningRate, str(prefix_, "group ", g), host_value(group.options().get_lr()),
                          [&group](const at::Tensor& lr) { group.options().set_lr(lr.item<double>()); }});
    }
  }

  void parameter(const at::Tensor& parameter, const std::string& place) {
    auto& identity = identities_[parameter.unsafeGetTensorImpl()];
    if (identity.listed) {
      return;
    }
    // A name without an entry is that of a master: models list their parameters themselves.
    const bool master = !identity.name.empty();
    identity = {master ? identity.name : place, true};
    entries_.push_back({master ? StateKind::Master : StateKind::Parameter, identity.name, parameter});
  }

  /// True if steps are counted in live tensors, as they are from the first step on, and after a load from the next.
  bool live(const optim::FusedOptimizer& fused) {
    bool counts = false;
    for (const auto& found : fused.live_tensors()) {
      switch (found.what) {
        case optim::LiveTensor::What::LearningRate:
          entries_.push_back(
              {StateKind::LearningRate, str(prefix_, "group ", found.group, " on device"), found.tensor});
          break;
        case optim::LiveTensor::What::StepCount:
          entries_.push_back({StateKind::StepCount, name_of(found.parameter), found.tensor});
          counts = true;
          break;
        case optim::LiveTensor::What::Master:
          entries_.push_back({StateKind::Master, name_of(found.parameter), found.tensor});
          break;
      }
    }
    return counts;
  }

  /// A step count in the state of an optimizer that counts in live tensors is a copy that may lag behind.
  void state(const at::Tensor& parameter, bool counted_on_device) {
    const auto state = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    if (state == optimizer_.state().end()) {
      return;
    }
    const auto view = view_of(*state->second);
    core::check(view.has_value(), "replica.attach", [&] {
      return core::Problem{"the optimizer's state is of a class that is not known here", typeid(*state->second).name(),
                           "a class of torch::optim or lockstep::optim",
                           "attach the model only, and cover() the state's tensors"};
    });
    const auto& name = name_of(parameter);
    for (const auto& [field, tensor] : view->tensors) {
      entries_.push_back({StateKind::Moment, str(name, ".", field), tensor});
    }
    if (view->steps && !counted_on_device) {
      entries_.push_back({StateKind::StepCount, name, host_value(*view->steps),
                          [set = view->set_steps](const at::Tensor& steps) { set(steps.item<std::int64_t>()); }});
    }
  }

  Entries& entries_;
  Identities& identities_;
  torch::optim::Optimizer& optimizer_;
  std::string prefix_;
};

}  // namespace

void append_optimizer(Entries& entries, Identities& identities, torch::optim::Optimizer& optimizer,
                      const std::string& prefix) {
  Walk(entries, identities, optimizer, prefix).run();
}

}  // namespace lockstep::replica
