// SPDX-License-Identifier: Apache-2.0
// How much each micro-batch counts in its window.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/comm/world.h"
#include "lockstep/step/train_step.h"

namespace lockstep::step {

class Window {
 public:
  Window(const TrainStepOptions& options, const World& world, c10::Device device);

  /// Micro-batches so far.
  std::int64_t length() const { return length_; }
  bool ends_with_next() const { return length_ + 1 == options_.accumulate; }

  /// Hands over the next micro-batch's count. In front of `weight`, and outside of a capture.
  void set_count(double count);
  /// The share of the loss in its window, as far as it is known before the window has ended: one element, fp64 for an
  /// fp64 loss, else fp32. Not to be written.
  at::Tensor weight(const at::Tensor& loss);
  void advance() { ++length_; }
  void set_length(std::int64_t length) { length_ = length; }

  /// What is still to be multiplied to the window's gradients: one fp32 element, or undefined for 1. Collective where
  /// counts weigh.
  at::Tensor multiplier();
  void restart();

 private:
  const TrainStepOptions options_;
  const World world_;
  const c10::Device device_;
  std::int64_t length_ = 0;
  at::Tensor weight_;         // of every micro-batch where counts do not weigh, fp64
  at::Tensor narrow_weight_;  // fp32
  at::Tensor count_;          // of the micro-batch at hand, one fp32 element on the device
  at::Tensor total_;          // of the window, one fp64 element there
};

}  // namespace lockstep::step
