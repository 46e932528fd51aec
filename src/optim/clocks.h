// SPDX-License-Identifier: Apache-2.0
// Step counts on the device. Parameters that have taken the same steps share one clock; when some of them miss a step
// (no gradient), those that take it part company with a copy of the count, made on the device: nobody reads it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "optim/pass.h"

namespace lockstep::optim {

/// One Clock in device memory.
struct ClockCell {
  at::Tensor memory;  // int64, sizeof(Clock) bytes
  std::size_t group = 0;
  std::int64_t born_at = 0;  // steps its members had taken when it was made
  std::int64_t members = 0;
  std::int64_t taking = 0;           // members that take the current step
  std::uint64_t serial = 0;          // the step that `taking` belongs to
  std::shared_ptr<ClockCell> split;  // where those go if not all take it

  Clock* clock() const { return static_cast<Clock*>(memory.mutable_data_ptr()); }
  c10::Device device() const { return memory.device(); }

  /// Steps taken so far. Waits for the device.
  std::int64_t read_steps() const { return memory[0].item<std::int64_t>(); }
};

using ClockHandle = std::shared_ptr<ClockCell>;

/// The clocks of one step: each parameter that takes it joins with the clock it has, or with none.
class Clocks {
 public:
  void begin(std::uint64_t serial);

  /// The clock of newcomers of a group that have taken `steps` steps.
  ClockHandle newborn(std::size_t group, c10::Device device, std::int64_t steps);

  void join(const ClockHandle& clock);

  /// After all have joined: parts those who take this step from those who do not.
  void settle();

  /// After settle(): the clock of a parameter that joined with `clock`.
  const ClockHandle& settled(const ClockHandle& clock) const { return clock->split ? clock->split : clock; }

  /// After settle(): every clock that advances.
  const std::vector<ClockHandle>& taking() const { return taking_; }

 private:
  std::uint64_t serial_ = 0;
  std::vector<ClockHandle> newborn_;
  std::vector<ClockHandle> joined_;
  std::vector<ClockHandle> taking_;
};

}  // namespace lockstep::optim
