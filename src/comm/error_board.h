// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a world read why it ended: one key of the store, written once. The first writer wins, and every
// writer gets the winner's words, so that all ranks say the same.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>

#include "comm/failure.h"

namespace lockstep::comm {

class ErrorBoard {
 public:
  explicit ErrorBoard(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  /// A round trip: the words that count are stored when it returns, and are returned.
  Words post(const Words& words);

  std::optional<Words> read();

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace lockstep::comm
