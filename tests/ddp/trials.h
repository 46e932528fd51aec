// SPDX-License-Identifier: Apache-2.0
// What the trials share. A trial replays a fault that a system of this kind has had in the field; its number is part of
// the test's name.
#pragma once

#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/ddp/data_parallel.h"
#include "support/ranks.h"

namespace lockstep::test {

/// Runs `fn` on every rank and returns each rank's error text, "" where there was none.
inline std::vector<std::string> errors_on_each_rank(int ranks, const std::function<void(World&)>& fn,
                                                    const WorldOptions& options = quick_options()) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  try {
    run_ranks(
        ranks,
        [&](World& world) {
          try {
            fn(world);
          } catch (const std::exception& error) {
            texts[static_cast<std::size_t>(world.rank())] = error.what();
            throw;
          }
        },
        options);
  } catch (const Error&) {
    // Each rank's own text is what is asked for.
  }
  return texts;
}

inline void expect_on_all(const std::vector<std::string>& texts, const std::string& part) {
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    EXPECT_NE(texts[rank].find(part), std::string::npos) << "rank " << rank << ": '" << texts[rank] << "'";
  }
}

inline ModelTensors named(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& buffers = {}) {
  ModelTensors tensors;
  for (const auto& p : parameters) {
    tensors.parameters.push_back({"p" + std::to_string(tensors.parameters.size()), p});
  }
  for (const auto& b : buffers) {
    tensors.buffers.push_back({"b" + std::to_string(tensors.buffers.size()), b});
  }
  return tensors;
}

/// Every tensor in a bucket of its own, or all in one.
inline std::vector<DataParallelOptions> tiny_and_huge_buckets(UnusedParameters unused = UnusedParameters::Error) {
  return {{.unused = unused, .bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6},
          {.unused = unused, .bucket_cap_mb = 1000, .first_bucket_mb = 1000}};
}

inline void forget_gradients(const std::vector<at::Tensor>& parameters) {
  for (const auto& p : parameters) {
    p.mutable_grad() = at::Tensor();
  }
}

/// Equal values, and undefined where the others are.
inline void expect_same_gradients(const std::vector<at::Tensor>& wrapped, const std::vector<at::Tensor>& alone) {
  ASSERT_EQ(wrapped.size(), alone.size());
  for (std::size_t i = 0; i < wrapped.size(); ++i) {
    ASSERT_EQ(wrapped[i].grad().defined(), alone[i].grad().defined()) << i;
    if (alone[i].grad().defined()) {
      EXPECT_TRUE(at::allclose(wrapped[i].grad(), alone[i].grad(), 1e-5, 1e-6)) << i;
    }
  }
}

}  // namespace lockstep::test
