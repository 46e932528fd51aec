// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/export.h"

namespace lockstep {

/// A bucket whose gradients are whole on this rank, handed to a communication hook.
struct GradientBucket {
  int index = 0;
  /// The last bucket of this backward pass: the one that holds the first registered parameters.
  bool is_last = false;
  /// Number of the reduced backward pass, from 0.
  std::uint32_t step = 0;
  /// The live gradients, one-dimensional, with padding (zeros) between tensors. Already divided by the pre-divide
  /// factor, which is the world's size unless the options say otherwise.
  at::Tensor buffer;
  /// Factor that turns the sum over ranks into the average: 1 unless a pre-divide factor was chosen.
  double remaining_factor = 1;
  /// Views of `buffer`, one for each parameter, in arena order, with their names.
  std::vector<at::Tensor> gradients;
  std::vector<std::string> names;
  /// Compared between ranks: pass it on to collectives so that different buckets and steps are never paired.
  std::uint32_t tag = 0;
};

/// Starts the reduction of a bucket and returns what finishes it. The finishing functions run at the end of backward,
/// in bucket order, on every rank; after one has run, `buffer` must hold the average. Both may use collectives: their
/// order is the same on all ranks.
using CommHook = std::function<std::function<void()>(const GradientBucket&)>;

/// What runs without a hook: a sum in the gradients' dtype.
LOCKSTEP_API CommHook all_reduce_hook(const World& world);

/// Sends float and double gradients as `wire` (half or bfloat16), which halves the bytes and rounds each gradient once
/// before and once per addition. Values that leave the wire's range become infinite.
LOCKSTEP_API CommHook compress_hook(const World& world, at::ScalarType wire);

/// Sums 16-bit gradients in fp32: one rounding at the end instead of one per addition, for twice the bytes.
LOCKSTEP_API CommHook float_reduction_hook(const World& world);

/// PowerSGD (Vogels, Karimireddy, Jaggi 2019): gradients of matrices are sent as two thin factors.
struct PowerSgdOptions {
  /// Columns of the factors: more are closer to the gradient and cost more.
  std::int64_t matrix_approximation_rank = 1;
  /// Plain all-reduce before this step, while gradients change fastest.
  std::uint32_t start_step = 1000;
  /// Matrices that would not shrink by this factor are sent as they are.
  double min_compression_rate = 2;
  /// Adds what a step did not send to the next one's gradient. Costs one copy of the gradients.
  bool use_error_feedback = true;
  /// Starts each step from the last one's factor.
  bool warm_start = true;
  /// Added to column norms where a factor may be rank deficient.
  double orthogonalization_epsilon = 0;
  /// The same on all ranks: the first factors are drawn from it.
  std::uint64_t seed = 0;
};
LOCKSTEP_API CommHook power_sgd_hook(const World& world, const PowerSgdOptions& options = {});

/// Local SGD with a warm-up: averages over all ranks before `start_step`, then within `subgroup` only. Pair it with
/// PeriodicModelAverager, or replicas part for good.
LOCKSTEP_API CommHook local_sgd_hook(const World& world, const World& subgroup, std::uint32_t start_step);

/// Averages parameters over all ranks every `period` steps, from step `warmup_steps` on.
class LOCKSTEP_API PeriodicModelAverager {
 public:
  /// Throws InputError where `period` is not positive.
  PeriodicModelAverager(const World& world, std::uint32_t period, std::uint32_t warmup_steps = 0);

  /// Call after each optimizer step, on every rank. Returns whether it averaged. Collective then.
  bool average_parameters(const std::vector<at::Tensor>& parameters);

 private:
  World world_;
  std::uint32_t period_;
  std::uint32_t warmup_steps_;
  std::uint32_t step_ = 0;
};

}  // namespace lockstep
