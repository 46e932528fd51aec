// SPDX-License-Identifier: Apache-2.0
// One thread a rank that keeps the world together: it reads the error board, beats, looks after one neighbour, compares
// what ranks are in where a collective takes long, and wakes those who wait when the world has ended.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <thread>

#include "comm/watch.h"

namespace lockstep::comm {

class Watcher {
 public:
  /// `store`: a client of the watcher's own, since one call of a client blocks all others.
  Watcher(std::shared_ptr<Watch> watch, c10::intrusive_ptr<c10d::Store> store);
  /// Says goodbye and joins the thread: as long as the store takes to answer.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  const std::shared_ptr<Watch> watch_;
  std::thread thread_;
};

}  // namespace lockstep::comm
