// SPDX-License-Identifier: Apache-2.0
// Ends a run in which every step is left out, without waiting for the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>

namespace lockstep::amp {

class SkipWatch {
 public:
  explicit SkipWatch(std::int64_t limit) : limit_(limit) {}

  /// True where the last value seen of `skips` (one fp32 element) has reached the limit. On the CPU the value is looked
  /// at now. Elsewhere every 32nd call reads the copy that the 32nd call before it began: which call notices does not
  /// depend on timing, so that all ranks end at the same one.
  bool reached_limit(const at::Tensor& skips);

 private:
  std::int64_t read_late(const at::Tensor& skips);

  std::int64_t limit_;
  std::int64_t calls_ = 0;
  at::Tensor host_copy_;
  std::optional<c10::Event> copied_;
};

}  // namespace lockstep::amp
