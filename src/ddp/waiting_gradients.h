// SPDX-License-Identifier: Apache-2.0
// Gradients of one bucket on their way into the arena. A kernel launch for each would cost more than the copies of
// most: they wait for each other.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::ddp {

class WaitingGradients {
 public:
  /// Takes `gradient` in, to be written to `slot` by the next `deliver`. False, and nothing is kept, where it cannot
  /// wait: on the CPU, with other strides than the slot, under another stream than those that wait already, or with
  /// enough of them waiting.
  bool hold(const at::Tensor& slot, const at::Tensor& gradient);

  /// Writes all that wait, times `scale` (a number on the CPU that promotes no dtype), in the stream that brought them,
  /// which the current stream then waits for, and forgets them.
  void deliver(const at::Tensor& scale);

  /// Drops them: the pass has failed.
  void forget();

 private:
  bool can_wait(const at::Tensor& slot, const at::Tensor& gradient) const;
  void write(const at::Tensor& scale);

  std::vector<at::Tensor> slots_;
  std::vector<at::Tensor> gradients_;
  std::int64_t bytes_ = 0;
  std::optional<c10::Stream> stream_;
};

}  // namespace lockstep::ddp
