// SPDX-License-Identifier: Apache-2.0
// A collective under way: the private half of Work, and the part of it that a watcher may look at.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/backend.h"
#include "comm/call.h"
#include "comm/ledger.h"
#include "comm/watch.h"

namespace lockstep::comm {

/// Whether a collective has ended. It holds no tensor, so that looking at it keeps no memory alive.
class Progress {
 public:
  explicit Progress(std::function<bool()> probe) : probe_(std::move(probe)) {}

  void end() { ended_.store(true, std::memory_order_release); }
  bool ended() {
    if (!ended_.load(std::memory_order_acquire) && probe_ && probe_()) {
      end();
    }
    return ended_.load(std::memory_order_acquire);
  }

 private:
  std::atomic<bool> ended_{false};
  const std::function<bool()> probe_;
};

/// Throws the world's words, once it is clear which those are, for a collective that broke for `reason`.
[[noreturn]] void raise_loss(Watch& watch, const Ledger& ledger, const Call& call, const std::string& reason);

}  // namespace lockstep::comm

namespace lockstep {

class Work::Impl {
 public:
  Impl(comm::Call call, comm::Issued issued, std::shared_ptr<comm::Watch> watch, std::shared_ptr<comm::Ledger> ledger);

  const std::shared_ptr<comm::Progress>& progress() const { return progress_; }

  void wait();
  bool done();

 private:
  // Where there is nothing to probe, the collective runs on the host and reports its end by itself.
  bool runs_on_host() const { return !issued_.probe; }
  void follow();
  void await_end();
  void finish();

  const comm::Call call_;
  comm::Issued issued_;
  const std::shared_ptr<comm::Watch> watch_;
  const std::shared_ptr<comm::Ledger> ledger_;
  const std::shared_ptr<comm::Progress> progress_;
  std::mutex finishing_;
  bool finished_ = false;
  // Marks the end of `finish` on the stream it ran on, for waiters on other streams.
  std::optional<c10::Event> finish_event_;
};

}  // namespace lockstep
