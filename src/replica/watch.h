// SPDX-License-Identifier: Apache-2.0
// Compares a changing set of entries every few steps, and acts on what it finds.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/comm/world.h"
#include "replica/entry.h"

namespace lockstep::replica {

class Watch {
 public:
  /// `list` gives the entries; the environment may set another `every`.
  Watch(const World& world, std::function<Entries()> list, std::int64_t every, OnMismatch on_mismatch);

  /// What a rank has to say where replicas differ, for the report's `own_gradients`.
  void set_evidence(std::function<std::string()> evidence) { evidence_ = std::move(evidence); }

  /// With a CUDA device the verdict of one call is read in the next.
  void step();
  /// Collective, without a wait for the device.
  void compare();
  /// Collective where a mismatch was found. Waits for the device.
  std::optional<ReplicaReport> verdict();

  std::int64_t steps() const { return steps_; }
  const std::optional<ReplicaReport>& last_report() const { return last_report_; }

 private:
  void act(ReplicaReport& report, const Entries& entries);

  World world_;
  std::function<Entries()> list_;
  std::function<std::string()> evidence_;
  std::int64_t every_;
  OnMismatch on_mismatch_;
  std::int64_t steps_ = 0;
  std::int64_t compared_at_ = 0;
  bool unread_ = false;
  at::Tensor rows_;  // of all ranks, one after the other
  std::optional<ReplicaReport> last_report_;
};

/// Steps between checks that the environment asks for, if it does.
std::optional<std::int64_t> every_by_environment();

}  // namespace lockstep::replica
