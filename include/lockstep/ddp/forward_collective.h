// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/export.h"

namespace lockstep {

/// A module that communicates in `forward` (statistics of a batch that is spread over ranks) derives from this as well
/// as from torch::nn::Module. A rank without inputs runs no forward and cannot take part in such calls, so `join`
/// refuses models that hold one, unless told to end on all ranks when the first rank's inputs end.
class LOCKSTEP_API ForwardCollective {
 public:
  virtual ~ForwardCollective() = default;
  /// False where this very module does not communicate (a world of one).
  virtual bool communicates_in_forward() const { return true; }
};

}  // namespace lockstep
