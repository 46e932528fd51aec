// SPDX-License-Identifier: Apache-2.0
// One rank's share of a data-parallel model: its tensors, its world, its reducer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/reducer.h"
#include "lockstep/comm/world.h"
#include "lockstep/ddp/data_parallel.h"
#include "replica/watch.h"

namespace lockstep::ddp {

class Replica {
 public:
  /// Collective: verifies, broadcasts, proves equality, then hangs the hooks. See DataParallelBase.
  Replica(ModelView view, const World& world, const DataParallelOptions& options);

  const World& world() const { return world_; }
  Reducer& reducer() { return *reducer_; }
  const Reducer& reducer() const { return *reducer_; }
  ModelTensors tensors() const;
  /// The buffers are equal on all ranks by now, since they have just been broadcast.
  bool buffers_are_equal() const { return options_.broadcast_buffers && !reducer_->last_was_quiet(); }
  /// A ReplicaCheck has taken over what the environment asks for.
  void stop_watching() { watch_.reset(); }
  /// Compares replicas where the environment asks for it. Each reduced pass ends with it, unless watching is paused.
  void watch_step();
  void pause_watching(int change) { watch_pauses_ += change; }
  void broadcast(int root) const;
  /// Throws, on every rank, where the model's parameters are no longer those that were wrapped.
  void check_parameters_unchanged() const;

  /// How to find the names of submodules that communicate in forward.
  void set_forward_collectives(std::function<std::vector<std::string>()> find) { find_collectives_ = std::move(find); }
  std::vector<std::string> forward_collectives() const;

 private:
  std::string local_problem() const;
  void synchronise() const;
  void broadcast_buffers(int source) const;
  void start_watching();
  void after_reduction(int source);
  void remember();
  bool looks_unchanged() const;

  /// A parameter as it was when the model was wrapped. Holding it keeps its address from being used again.
  struct Known {
    at::Tensor tensor;
    bool trained;
  };

  ModelView view_;
  std::function<std::vector<std::string>()> find_collectives_;
  World world_;
  DataParallelOptions options_;
  std::vector<NamedTensor> trained_;
  std::vector<Known> known_;
  std::vector<const void*> identities_;
  bool has_buffers_ = false;
  std::shared_ptr<Reducer> reducer_;
  int watch_pauses_ = 0;
  std::optional<replica::Watch> watch_;  // where LOCKSTEP_CHECK_EVERY asks for it
};

/// For a while in which replicas may differ, or in which somebody else calls `watch_step`.
class WatchPause {
 public:
  explicit WatchPause(Replica& replica) : replica_(replica) { replica_.pause_watching(1); }
  ~WatchPause() { replica_.pause_watching(-1); }
  WatchPause(const WatchPause&) = delete;
  WatchPause& operator=(const WatchPause&) = delete;

 private:
  Replica& replica_;
};

}  // namespace lockstep::ddp
