// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/ddp/data_parallel.h"
#include "lockstep/error.h"
#include "lockstep/export.h"

namespace lockstep {

/// What gradients are divided by once ranks have run out of inputs.
enum class JoinDivisor : std::uint8_t {
  /// The world's size: a sample weighs the same in every step, whoever has ended.
  Initial,
  /// The number of ranks that bring gradients: a step's gradient is the average of what there is.
  Live,
};

struct JoinOptions {
  JoinDivisor divisor = JoinDivisor::Initial;
  /// All ranks throw EndOfInputs once one of them has run out: at their next forward through the wrapper, or at their
  /// next reduced backward. For models that communicate in forward.
  bool throw_on_early_end = false;
  /// false: `body` is run, and nothing else.
  bool enable = true;
};

/// Some rank has run out of inputs, with `throw_on_early_end`. The same text on every rank; the world stays usable.
class LOCKSTEP_API EndOfInputs : public Error {
 public:
  using Error::Error;
};

/// A module that communicates in `forward` (statistics of a batch that is spread over ranks) derives from this as well
/// as from torch::nn::Module. A rank without inputs runs no forward and cannot take part in such calls, so `join`
/// refuses models that hold one, unless told to end on all ranks when the first rank's inputs end.
class LOCKSTEP_API ForwardCollective {
 public:
  virtual ~ForwardCollective() = default;
  /// False where this very module does not communicate (a world of one).
  virtual bool communicates_in_forward() const { return true; }
};

/// Trains on inputs whose number differs between ranks. `body` is the loop over this rank's inputs; it may make any
/// number of backward passes, none included, under no_sync or not. A rank whose `body` has returned takes part in the
/// others' reduced passes (buckets, hooks, unused parameters, buffers) with zeros until all ranks have ended:
///
///     auto step = [&] { optimizer.step(); optimizer.zero_grad(); };
///     lockstep::join(ddp, [&] {
///       for (auto& batch : shard) { loss_of(batch).backward(); step(); }
///     }, step);
///
/// `step` is what `body` does after each of its reduced passes. A rank that has ended calls it in the others' rhythm,
/// with the same averaged gradients, so that optimizer state, masters, loss scale and schedule stay equal as well.
/// Without it (`nullptr`) only parameters and buffers are equal afterwards.
///
/// What a rank accumulated under no_sync before its inputs ended takes part in the next reduced pass of the others; if
/// there is none, it stays in `.grad`. At the end all ranks get the parameters and buffers of the lowest rank that was
/// among the last to train: bitwise equal.
///
/// Collective. Throws InputError, the same on every rank and before `body` runs, where options differ between ranks,
/// inside another join of the same model, and where a module communicates in forward (see ForwardCollective) without
/// `throw_on_early_end`. What `body` or `step` throw on one rank ends the world with these words on every rank.
/// Collectives of your own do not belong in `body`: a rank that has ended does not make them.
/// A reduced pass costs one more small reduction and a read of its result.
LOCKSTEP_API void join(const DataParallelBase& ddp, const std::function<void()>& body,
                       const std::function<void()>& step, const JoinOptions& options = {});

}  // namespace lockstep
