// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/export.h"

namespace lockstep {

class DataParallelBase;
namespace amp {
class Amp;
}
namespace optim {
class LrScheduler;
}

/// What a step works with. All of it must outlive the TrainStep. `amp` or `scaler`, not both.
struct TrainStepParts {
  torch::optim::Optimizer& optimizer;
  DataParallelBase* ddp = nullptr;         // reduces gradients once a window
  amp::Amp* amp = nullptr;                 // made by amp::initialize
  amp::GradScaler* scaler = nullptr;       // for native mixed precision
  optim::LrScheduler* schedule = nullptr;  // advances by one with every step taken, not with those left out
};

struct TrainStepOptions {
  /// Micro-batches a window. Gradients of a window are averaged over it, and reduced once.
  std::int64_t accumulate = 1;
  /// Largest norm of a window's true gradients, all parameters together; 0: they are not clipped.
  double clip_norm = 0;
  double clip_norm_type = 2;
  /// Micro-batches weigh as their counts do (samples, tokens), over the window and over all ranks, where each loss is a
  /// mean over so many. One more small all-reduce a window.
  bool weigh_by_count = false;
  /// With it: the count that is usual. Losses are multiplied by count / typical_count before backward, so that loss
  /// scales stay where they are. The same on all ranks.
  double typical_count = 1;

  /// Record the step as a CUDA graph after some eager ones, and replay it from then on (see docs/train_step.md).
  /// Where that cannot be done the step stays eager, and `describe` says why.
  bool capture = false;
  /// Throw instead.
  bool require_capture = false;
  /// Eager windows before the first capture. They are steps like all others.
  std::int64_t warm_up = 3;
  /// Input shapes that get graphs of their own. Further shapes run eagerly.
  std::int64_t max_shapes = 4;
};

struct MicroBatch {
  double count = 1;   // see weigh_by_count
  bool last = false;  // ends the window, however short it is
};

/// What became of one micro-batch.
class LOCKSTEP_API TrainStepResult {
 public:
  TrainStepResult(at::Tensor loss, std::optional<amp::StepOutcome> outcome)
      : loss_(std::move(loss)), outcome_(std::move(outcome)) {}

  /// What the loss function returned: one element, neither scaled nor weighed, without history.
  const at::Tensor& loss() const { return loss_; }
  /// True if a window ended, so that the optimizer's step was taken or left out.
  bool ended() const { return outcome_.has_value(); }
  /// True if it was left out for inf or NaN. Waits for the device.
  bool skipped() const { return outcome_ && outcome_->skipped(); }
  /// Norm of the true gradients before they were clipped; undefined inside a window and without `clip_norm`.
  at::Tensor grad_norm() const { return outcome_ ? outcome_->grad_norm() : at::Tensor(); }

 private:
  at::Tensor loss_;
  std::optional<amp::StepOutcome> outcome_;
};

/// Everything between a batch and new weights, in the one right order: forward, weigh, scale, backward (quiet inside a
/// window, reducing at its end), unscale, clip, step or skip, update of the scale, zero, schedule.
///
///     TrainStep step({.optimizer = optimizer, .ddp = &ddp, .amp = &amp},
///                    [&](const auto& in) { return criterion(amp.forward(ddp, in[0]), in[1]); },
///                    {.accumulate = 4, .clip_norm = 1.0});
///     for (const auto& batch : loader) {
///       total += step({batch.data, batch.target}).loss();
///     }
///     step.finish();                              // a last short window, averaged over its own length
///
/// Without `amp` and `scaler` the step is taken whatever the gradients are. All ranks make the same calls.
class LOCKSTEP_API TrainStep {
 public:
  using Inputs = std::vector<at::Tensor>;
  /// Returns the loss: one floating element that requires grad, a mean over the micro-batch. A captured one must read
  /// its tensors from the argument alone, and is not called in replays.
  using Loss = std::function<at::Tensor(const Inputs&)>;

  /// Throws InputError for options out of range and parts that do not fit together.
  TrainStep(const TrainStepParts& parts, Loss loss, const TrainStepOptions& options = {});
  ~TrainStep();
  TrainStep(TrainStep&&) noexcept;
  TrainStep& operator=(TrainStep&&) noexcept;

  /// One micro-batch. If the loss function throws, the window is as it was before. If backward does, its gradients
  /// cannot be trusted: every call throws InputError until `abandon`.
  TrainStepResult operator()(const Inputs& inputs, const MicroBatch& micro_batch = {});

  /// Ends a window that is under way; does nothing where none is. The result's loss is undefined.
  TrainStepResult finish();

  /// Drops the window under way with its gradients.
  void abandon();

  /// Brings the schedule up to date with the last step, whose outcome it otherwise learns one step later, so as not to
  /// wait for the device. Waits.
  void settle();

  /// Micro-batches of the window so far.
  std::int64_t pending() const;
  /// Windows ended, skipped ones included.
  std::int64_t steps() const;
  /// "captured, 1 input shape", "warming up", or "eager: " and the reason.
  std::string describe() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
