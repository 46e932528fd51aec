// SPDX-License-Identifier: Apache-2.0
// Who still has inputs? Within a join, all ranks ask at the start of every reduced backward pass: those that train and
// those that have ended, so everything that depends on the answer is the same on all of them.
#pragma once

#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/ddp/join.h"

namespace lockstep::ddp {

class RollCall {
 public:
  enum class Answer : int {
    Ended = 0,
    /// Ended, but with gradients of passes that were not reduced.
    Brings = 1,
    Live = 2,
  };

  RollCall(const World& world, const JoinOptions& options);

  /// Collective. Throws EndOfInputs, on every rank, where some have ended, others not, and the options ask for it.
  void call(Answer mine);

  /// The rest is about the last call.
  bool anyone_live() const;
  /// What the sum of all ranks' gradients is divided by.
  int divisor() const;
  /// The lowest rank that trains; where none does, the lowest of those that trained last.
  int source() const { return source_; }

  const JoinOptions& options() const { return options_; }

 private:
  int count_at_least(Answer answer) const;
  [[noreturn]] void raise_early_end() const;

  World world_;
  JoinOptions options_;
  std::vector<int> answers_;
  int source_ = 0;
  std::uint32_t calls_ = 0;
};

}  // namespace lockstep::ddp
