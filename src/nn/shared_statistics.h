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
  /// int32, values a channel of each rank.
  at::Tensor counts;
};

/// Running statistics, undefined where there are none, and how a batch goes into them.
struct Running {
  at::Tensor mean;
  at::Tensor var;
  at::Tensor batches;
  std::optional<double> momentum;
  bool skip_non_finite = true;
};

/// `input`: without autograd. Collective. Takes the batch into the running statistics, unless it has fewer than two
/// values a channel, or inf or NaN in its statistics and `skip_non_finite`. Throws InputError, on every rank, where the
/// ranks together have one value a channel. Where they have none, statistics are those of the standard distribution.
SharedStatistics share_statistics(const at::Tensor& input, double eps, const Running& running, const World& world,
                                  const CallLabel& label);

/// An fp32 number counts exactly to 2^24 only, so a count travels as two digits.
constexpr std::int64_t kDigit = 1 << 16;

/// Mean, variance and the count's two digits: 2 * C + 2 numbers.
at::Tensor message_of(const Moments& moments, std::int64_t count);

/// The second half of share_statistics, from the messages of all ranks, one a row. On CUDA one kernel where running
/// statistics have the dtype of the message.
SharedStatistics merge(const at::Tensor& messages, double eps, const Running& running);

/// One if all values of both are finite, else zero: an integer on their device.
at::Tensor finite(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::nn
