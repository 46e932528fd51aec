// SPDX-License-Identifier: Apache-2.0
// One rank's share of a data-parallel model: its tensors, its world, its reducer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/reducer.h"
#include "lockstep/comm/world.h"
#include "lockstep/ddp/data_parallel.h"

namespace lockstep::ddp {

class Replica {
 public:
  /// Collective: verifies, broadcasts, proves equality, then hangs the hooks. See DataParallelBase.
  Replica(std::function<ModelTensors()> list, const World& world, const DataParallelOptions& options);

  const World& world() const { return world_; }
  Reducer& reducer() { return *reducer_; }
  const Reducer& reducer() const { return *reducer_; }
  ModelTensors tensors() const;
  void broadcast(int root) const;

 private:
  std::string local_problem() const;
  void synchronise() const;
  void check_parameters_unchanged() const;
  void broadcast_buffers() const;

  std::function<ModelTensors()> list_;
  World world_;
  DataParallelOptions options_;
  std::vector<NamedTensor> trained_;
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace lockstep::ddp
