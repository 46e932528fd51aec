// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/fd.h"

namespace lockstep::launcher {

/// A TCP port that is kept for rank 0. The lease binds it and never listens. Rank 0's server can bind it too, since
/// both set SO_REUSEADDR (as c10d's store does), while the system gives it to nobody who asks for any free port, or who
/// connects to somewhere: the usual race between choosing a port and using it cannot happen.
class PortLease {
 public:
  /// Port 0: a free one. Throws InputError where somebody listens on that port already.
  explicit PortLease(int port);

  int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_;
};

}  // namespace lockstep::launcher
