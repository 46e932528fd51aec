// SPDX-License-Identifier: Apache-2.0
// A rank's membership of a world: its store, its watcher, and what became of it. The world and all worlds split from it
// share one.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "comm/backend.h"
#include "comm/watch.h"
#include "comm/watcher.h"
#include "lockstep/comm/world.h"

namespace lockstep::comm {

class Membership {
 public:
  /// Meets the other ranks. `options` are complete and for more than one rank.
  explicit Membership(const WorldOptions& options);
  /// Leaves in peace, or in failure if there is one. Takes about a second at most, three where this rank serves the
  /// store and others are slow to read what it leaves behind.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  const std::shared_ptr<Watch>& watch() const { return watch_; }

  /// A backend for a group of this world. All its members call this at the same time with the same name.
  std::unique_ptr<Backend> make_group(const std::string& name, int rank, int size);

 private:
  const WorldOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Watch> watch_;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace lockstep::comm
