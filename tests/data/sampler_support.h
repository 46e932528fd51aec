// SPDX-License-Identifier: Apache-2.0
// What the tests of the sampler share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "lockstep/data/distributed_sampler.h"

namespace lockstep::data {

using Indices = std::vector<std::size_t>;
using Options = DistributedSamplerOptions;

// An odd batch size, so that batches and shares do not end together.
inline Indices rest_of(DistributedSampler& sampler, std::size_t batch_size = 3) {
  Indices all;
  while (auto batch = sampler.next(batch_size)) {
    EXPECT_LE(batch->size(), batch_size);
    all.insert(all.end(), batch->begin(), batch->end());
  }
  return all;
}

inline Indices epoch_of(DistributedSampler& sampler, std::uint64_t epoch) {
  sampler.set_epoch(epoch);
  return rest_of(sampler);
}

inline std::vector<int> times_seen(std::size_t size, const std::vector<Indices>& shares) {
  std::vector<int> seen(size);
  for (const auto& share : shares) {
    for (const auto index : share) {
      ++seen.at(index);
    }
  }
  return seen;
}

}  // namespace lockstep::data
