// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "lockstep/comm/world.h"

namespace lockstep::test {

/// Collective: whether all ranks hold the same bits (so that equal NaNs are equal), the same answer on every rank.
inline bool same_on_all_ranks(const World& world, const std::vector<at::Tensor>& tensors) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> bytes;
  for (const auto& tensor : tensors) {
    bytes.push_back(tensor.detach().cpu().contiguous().view({-1}).view(at::kByte));
  }
  const auto mine = at::cat(bytes);
  const auto all = at::empty({world.size() * mine.numel()}, mine.options());
  world.all_gather(all, mine, {"replicas"}).wait();
  const auto rows = all.view({world.size(), mine.numel()});
  return at::equal(rows, rows.narrow(0, 0, 1).expand_as(rows));
}

}  // namespace lockstep::test
