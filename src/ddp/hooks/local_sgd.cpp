// SPDX-License-Identifier: Apache-2.0
// Local SGD: gradients stay in a small group, parameters are averaged now and then.
#include <c10/core/GradMode.h>

#include "core/check.h"
#include "lockstep/ddp/comm_hook.h"

namespace lockstep {

CommHook local_sgd_hook(const World& world, const World& subgroup, std::uint32_t start_step) {
  const double correction = static_cast<double>(world.size()) / subgroup.size();
  return [everywhere = all_reduce_hook(world), local = all_reduce_hook(subgroup), start_step,
          correction](const GradientBucket& bucket) {
    if (bucket.step < start_step) {
      return everywhere(bucket);
    }
    GradientBucket narrowed = bucket;
    narrowed.remaining_factor *= correction;  // it was divided for the whole world
    return local(narrowed);
  };
}

PeriodicModelAverager::PeriodicModelAverager(const World& world, std::uint32_t period, std::uint32_t warmup_steps)
    : world_(world), period_(period), warmup_steps_(warmup_steps) {
  core::check(period > 0, "ddp.model_averager", [] {
    return core::Problem{"the period must be positive", "0", "a number of steps"};
  });
}

bool PeriodicModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  const auto step = step_++;
  if (step < warmup_steps_ || (step - warmup_steps_) % period_ != 0) {
    return false;
  }
  const c10::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    const auto message = parameter.detach().contiguous().clone();
    world_.all_reduce(message, ReduceOp::Average, {"model average", step}).wait();
    parameter.copy_(message);
  }
  return true;
}

}  // namespace lockstep
