// SPDX-License-Identifier: Apache-2.0
// Statistics of the batches of all ranks, from one collective. Every rank computes them from the same message by the
// same operations, so they are equal bit by bit.
#pragma once

#include <optional>

#include "lockstep/comm/world.h"
#include "nn/channel_math.h"

namespace lockstep::nn {

struct SharedStatistics {
  Moments moments;
  at::Tensor invstd;
  at::Tensor unbiased_var;
  /// int32, values a channel of each rank.
  at::Tensor counts;
  /// Values a channel of all ranks, where the host had to know: at most one on this rank.
  std::optional<std::int64_t> total;
};

/// `input`: without autograd. Collective. Throws InputError, on every rank, where the ranks together have one value a
/// channel. Where they have none, `total` is 0, and the statistics are those of the standard distribution.
SharedStatistics share_statistics(const at::Tensor& input, double eps, const World& world, const CallLabel& label);

struct Running {
  at::Tensor mean;
  at::Tensor var;
  at::Tensor batches;
};

/// Takes the batch into the running statistics. `skip_non_finite`: unless some statistic is inf or NaN.
void update_running(const Running& running, const SharedStatistics& batch, std::optional<double> momentum,
                    bool skip_non_finite);

/// One if all values of both are finite, else zero: an integer on their device.
at::Tensor finite(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::nn
