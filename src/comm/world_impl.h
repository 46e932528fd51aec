// SPDX-License-Identifier: Apache-2.0
// A group of ranks, from the inside.
#pragma once

#include <c10/util/FunctionRef.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/backend.h"
#include "comm/checks.h"
#include "comm/in_flight.h"
#include "comm/ledger.h"
#include "comm/membership.h"
#include "comm/watch.h"
#include "lockstep/comm/world.h"

namespace lockstep {

class World::Impl {
 public:
  using Begin = c10::function_ref<comm::Issued(const comm::Call&)>;

  /// A whole world. `options` are complete.
  explicit Impl(const WorldOptions& options);
  /// A part of `parent`: those of its ranks (as ranks of `parent`) that `members` lists, in their new order.
  Impl(const Impl& parent, const std::string& name, const std::vector<int>& members);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const WorldOptions& options() const { return options_; }
  comm::Backend& backend() const { return *backend_; }
  comm::Watch& watch() const { return *watch_; }
  const comm::Ledger& ledger() const { return *ledger_; }
  comm::Place place() const;
  /// Where the world's own small tensors live: on the host if the backend takes them there.
  c10::Device control_device() const { return place().takes_cpu ? c10::Device(c10::kCPU) : *options_.device; }
  /// Counts the splits of this group; the same on all its ranks.
  int next_split() { return ++splits_; }

  /// Numbers the call, begins it and keeps an eye on it. An empty one is done at once.
  Work issue(comm::Call call, Begin begin);
  /// Counts a call that has nothing to do in a world of one.
  Work pass(comm::Call call);

 private:
  comm::Issued try_begin(const comm::Call& call, Begin begin);
  void end_pending();
  void leave_in_flight();
  void watch_over(const std::string& name, std::vector<int> members);

  const WorldOptions options_;
  const int exceptions_at_birth_;
  std::shared_ptr<comm::Membership> membership_;
  std::shared_ptr<comm::Watch> watch_;
  std::shared_ptr<comm::Ledger> ledger_;
  std::shared_ptr<comm::Backend> backend_;
  std::mutex issuing_;
  int splits_ = 0;
};

}  // namespace lockstep
