// SPDX-License-Identifier: Apache-2.0
// Blocks SIGPIPE for the current thread and, which is the point, for the threads started meanwhile: they inherit the
// mask. Gloo and the store write to sockets whose peer may be dead, and a C++ program would end by the signal.
#pragma once

#include <csignal>

namespace lockstep::comm {

class SigpipeBlock {
 public:
  SigpipeBlock() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  ~SigpipeBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace lockstep::comm
