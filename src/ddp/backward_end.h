// SPDX-License-Identifier: Apache-2.0
// The end of the outermost backward pass. A backward inside a backward (activation checkpointing) is a graph task of
// its own, and the engine only offers a callback at the end of the current task; this file climbs from there.
#pragma once

#include <memory>

namespace lockstep::ddp {

class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  /// The outermost backward pass has run to its end. May throw; the caller of backward() gets the exception.
  virtual void backward_done() = 0;
  /// It ended by an exception, or never reached its end.
  virtual void backward_failed() noexcept = 0;
};

/// Calls one of the two, once, when the outermost of the backward passes now running in this thread ends.
/// REQUIRES: called from a hook inside a backward pass.
void notify_at_end_of_backward(const std::weak_ptr<BackwardListener>& listener);

}  // namespace lockstep::ddp
