// SPDX-License-Identifier: Apache-2.0
// What surrounds backward passes: evidence of what they reduce, and reductions without one, of what quiet passes have
// left and, within a join, of other ranks.
#include <algorithm>

#include "core/capturing.h"
#include "core/check.h"
#include "ddp/reducer.h"

namespace lockstep::ddp {

void Reducer::set_roll_call(std::shared_ptr<RollCall> roll_call) {
  const std::lock_guard lock(mutex_);
  roll_call_ = std::move(roll_call);
}

void Reducer::buffers_were_broadcast() {
  const std::lock_guard lock(mutex_);
  last_was_quiet_ = false;
}

bool Reducer::has_roll_call() const {
  const std::lock_guard lock(mutex_);
  return roll_call_ != nullptr;
}

void Reducer::before_forward() {
  const std::lock_guard lock(mutex_);
  if (roll_call_ && roll_call_->options().throw_on_early_end) {
    roll_call_->call(RollCall::Answer::Live);
  }
}

void Reducer::answer(RollCall::Answer mine) {
  divisor_ = world_.size();
  source_ = 0;
  const bool capturing = core::capturing();
  recorded_ = recorded_ || capturing;
  if (roll_call_) {
    core::check(!capturing, "ddp.join", [] {
      return core::Problem{"a step is being captured, which ranks without inputs cannot take part in"};
    });
    roll_call_->call(mine);
    divisor_ = std::max(roll_call_->divisor(), 1);
    source_ = roll_call_->source();
  }
}

std::shared_ptr<const GradientDigests> Reducer::hash_gradients() {
  const std::lock_guard lock(mutex_);
  if (!digests_) {
    core::check(!recorded_, "replica.attach", [] {
      return core::Problem{"a step has been recorded already, whose replays do not hash gradients", "", "",
                           "attach a check with `gradients` before the first captured step"};
    });
    digests_ = std::make_shared<GradientDigests>(statistics_.buckets, slots_.layout().groups.front().device);
    slots_.allocate();
    hook_ = digests_->around(std::move(hook_));
  }
  return digests_;
}

void Reducer::reduce_now() {
  const std::lock_guard lock(mutex_);
  core::check(!running_, "ddp.synchronize_gradients", [] {
    return core::Problem{"a backward pass is under way", "", "", "call it between backward and the optimizer's step"};
  });
  try {
    open(/*quiet=*/false);
    if (!usage_.any()) {
      // Replays of a captured step show the host no gradients: what is there is what they have accumulated.
      for (int i = 0; i < slots_.size(); ++i) {
        usage_.note(i, slots_.parameter(i).grad().defined());
      }
    }
    end_reduced();
  } catch (...) {
    reset();
    throw;
  }
  reset();
}

bool Reducer::shadow() {
  const std::lock_guard lock(mutex_);
  bool brings_any = false;
  for (int i = 0; i < slots_.size(); ++i) {
    brings_any = brings_any || brings(i);
  }
  answer(brings_any ? RollCall::Answer::Brings : RollCall::Answer::Ended);
  if (!roll_call_->anyone_live()) {
    return false;
  }
  start_pass();
  try {
    take_what_quiet_passes_left();
    reduce();
  } catch (...) {
    reset();
    throw;
  }
  reset();
  ++statistics_.shadowed_backwards;
  return true;
}

bool Reducer::brings(int index) const {
  return usage_.here(index) && slots_.parameter(index).grad().defined();
}

/// Everything else in `.grad` is the last step's, which the others have cleared.
void Reducer::take_what_quiet_passes_left() {
  for (int i = 0; i < slots_.size(); ++i) {
    if (!brings(i)) {
      slots_.parameter(i).mutable_grad() = at::Tensor();
    }
    slots_.take(i);
  }
}

}  // namespace lockstep::ddp
