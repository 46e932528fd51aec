// SPDX-License-Identifier: Apache-2.0
// The inside of a TrainStep: eager micro-batches, and the choice between them and replays.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ddp/data_parallel.h"
#include "lockstep/step/train_step.h"
#include "step/captured.h"
#include "step/late_flag.h"
#include "step/update.h"
#include "step/window.h"

namespace lockstep {
namespace ddp {
class WatchPause;
}

class TrainStep::Impl {
 public:
  Impl(const TrainStepParts& parts, Loss loss, const TrainStepOptions& options);

  TrainStepResult run(const Inputs& inputs, const MicroBatch& micro_batch);
  TrainStepResult finish();
  void abandon();
  void settle();

  std::int64_t pending() const { return window_.length(); }
  std::int64_t steps() const { return steps_; }
  std::string describe() const;

 private:
  void require_sound(const char* where) const;
  at::Tensor evaluate(const Inputs& inputs) const;
  /// Forward and backward, eagerly or under capture.
  at::Tensor micro_batch(const Inputs& inputs, bool ends);
  std::unique_ptr<ddp::WatchPause> pause_watching() const;
  amp::StepOutcome take_step();
  /// A whole micro-batch for a recording. Leaves no trace on the host.
  step::Outputs recorded(const Inputs& inputs, step::Place place);

  TrainStepResult run_eagerly(const Inputs& inputs, bool ends);
  TrainStepResult replay(const Inputs& inputs, bool ends);
  /// True if this micro-batch is to be replayed; records first where the time has come.
  bool prepare_replay(const Inputs& inputs);
  bool try_record(const Inputs& inputs);
  void stay_eager(const std::string& reason);
  std::string obstacle() const;
  void end_window(const amp::StepOutcome& outcome);
  void upload_learning_rates();
  std::vector<at::Tensor> trained() const;

  TrainStepParts parts_;
  Loss loss_;
  TrainStepOptions options_;
  c10::Device device_;
  step::Update update_;
  step::Window window_;
  std::int64_t steps_ = 0;
  bool spoilt_ = false;  // a backward pass of this window has thrown
  step::LateFlag skipped_;

  std::unique_ptr<step::Captured> captured_;  // null: eager for good
  std::string reason_;                        // why
  bool replaying_ = false;                    // the window under way consists of replays
  Inputs replayed_;                           // its last inputs, for their shape
  std::vector<double> rates_;                 // learning rates that the graphs read
};

}  // namespace lockstep
