// SPDX-License-Identifier: Apache-2.0
// A model of one number for tests of join: every gradient is what the test says, so every average can be told by hand.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/ddp/join.h"
#include "support/ranks.h"

namespace lockstep::test {

struct OneNumber {
  at::Tensor w;
  at::Tensor seen;
  DataParallelBase ddp;
  /// The averages after each reduced pass, on ranks that train and on those that shadow.
  std::vector<float> gradients;

  explicit OneNumber(const World& world, const DataParallelOptions& options = {}, c10::Device device = c10::kCPU)
      : w(at::zeros({1}, device).requires_grad_()),
        seen(at::zeros({1}, device)),
        ddp(ModelTensors{{{"w", w}}, {{"seen", seen}}}, world, options) {}

  void backward(double gradient) const { (w * gradient).sum().backward(); }

  /// Plain gradient descent.
  void step() {
    const c10::NoGradGuard no_grad;
    gradients.push_back(w.grad().item<float>());
    w -= w.grad();
    w.mutable_grad() = at::Tensor();
  }

  /// `count` inputs whose gradient is `gradient`; the buffer counts them from `first`.
  void train(int count, double gradient, double first, const JoinOptions& options) {
    join(
        ddp,
        [&] {
          for (int i = 0; i < count; ++i) {
            seen.fill_(first + i);
            backward(gradient);
            step();
          }
        },
        [&] { step(); }, options);
  }
};

}  // namespace lockstep::test
