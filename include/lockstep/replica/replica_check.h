// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/error.h"
#include "lockstep/export.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

class DataParallelBase;
namespace amp {
class Amp;
class GradScaler;
}  // namespace amp

/// What a piece of training state is, likeliest cause first: a moment that differs makes a parameter differ one step
/// later, and not the other way round, since gradients are averaged.
enum class StateKind : std::uint8_t {
  LearningRate,
  LossScale,  // the scale, and the counters that steer it
  StepCount,
  Gradient,  // buckets after their reductions, see ReplicaCheckOptions::gradients
  Moment,    // of an optimizer, and whatever else it keeps for a parameter
  Master,
  Parameter,
  Buffer,
  Other,  // added by the caller
};

/// "learning rate", "loss scale", "step count", "gradient", "moment", "master", "parameter", "buffer", "tensor"
LOCKSTEP_API const char* to_string(StateKind kind);

/// One tensor that differs between ranks, at its first element (in row-major order) that does.
struct LOCKSTEP_API ReplicaDifference {
  StateKind kind = StateKind::Other;
  /// `0.weight`; `0.weight.exp_avg` for a moment; `group 0` for a learning rate.
  std::string name;
  /// Place of the element, one number a dimension.
  std::vector<std::int64_t> index;
  /// Lowest rank of the largest group of ranks whose tensors are equal.
  int reference = 0;
  /// False where another group is as large, as always on two ranks: then the reference need not be the healthy one.
  bool majority = false;
  /// The ranks outside of that group.
  std::vector<int> ranks;
  /// The element on every rank of the world: its value in decimal, and its bits: `0.25 (0x3e800000)`.
  std::vector<std::string> values;

  /// `parameter 0.weight differs from rank 0 on rank 1 at [2, 5]: 0.25 (0x3e800000) instead of 0.5 (0x3f000000)`
  std::string text() const;
};

/// What a check found; the same on every rank.
struct LOCKSTEP_API ReplicaReport {
  /// Number of the call of `step()` after which the replicas were compared.
  std::int64_t step = 0;
  /// The first of the differing tensors (at most 8), likeliest cause first.
  std::vector<ReplicaDifference> differences;
  /// How many differ in all.
  std::int64_t differing = 0;
  /// Ranks hold different sets of tensors: the first place where their lists part. Then nothing else was compared.
  std::string structure;
  /// With ReplicaCheckOptions::gradients, unless `structure` is set: a hash of each rank's own gradients, as they went
  /// into all reductions so far, 16 hexadecimal digits a rank.
  std::vector<std::string> own_gradients;
  /// With ReplicaCheckOptions::gradients: a reduction has not given all ranks the same, whether or not `differences`
  /// has room for it.
  bool reductions_parted = false;
  /// The rank that is with the majority most often, the lowest of several: what `resync` copies.
  int healthiest = 0;
  bool resynced = false;

  std::string text() const;
};

/// Replicas differ. Thrown by every rank at the same call.
class LOCKSTEP_API ReplicaError : public Error {
 public:
  explicit ReplicaError(ReplicaReport report);

  const ReplicaReport& report() const { return report_; }

 private:
  ReplicaReport report_;
};

enum class OnMismatch : std::uint8_t {
  /// ReplicaError on every rank.
  Throw,
  /// A warning, printed by rank 0, at every check that finds one.
  Warn,
  /// A warning, and everything that is covered is copied from the report's `healthiest` rank, in place; ReplicaError if
  /// that does not help, or where ranks hold different sets of tensors.
  Resync,
};

/// Buffers that a check covers.
enum class CheckedBuffers : std::uint8_t {
  /// Those that DistributedDataParallel keeps equal: all of them where it broadcasts them, unless the last backward
  /// pass was a quiet one (no_sync), else none.
  WhereBroadcast,
  /// All, as suits a model with SyncBatchNorm only.
  All,
  None,
};

struct ReplicaCheckOptions {
  /// Steps from one check to the next; 0: never. The environment variable LOCKSTEP_CHECK_EVERY, where set, wins.
  std::int64_t every = 1;
  OnMismatch on_mismatch = OnMismatch::Throw;
  CheckedBuffers buffers = CheckedBuffers::WhereBroadcast;
  /// Hash each bucket of attached DistributedDataParallels before and after its reduction, in every pass that reduces.
  /// What came out is compared as well; what went in is reported. So a report tells a reduction that did not give all
  /// ranks the same from a rank whose own state or arithmetic is at fault. Costs two more readings of the gradients.
  /// Attach before a TrainStep has recorded (InputError after that); the wrapper goes on hashing when the check is
  /// gone. Not for `local_sgd_hook`, whose gradients differ by design. `digest` then depends on the number of ranks.
  bool gradients = false;
};

/// Proves, while training, that the replicas are equal bit by bit, and names the rank, the tensor and the element where
/// they are not:
///
///     ReplicaCheck check(world, {.every = 100});
///     check.attach(ddp);
///     check.attach(optimizer);
///     check.attach(amp);                        // or a GradScaler
///     for (...) { ...; amp.step(optimizer); check.step(); }
///
/// A check reads everything that was attached once, at the speed of memory, and sends 24 bytes a rank. With a CUDA
/// device nothing waits for it: the verdict of one check is read at the next call of `step`. What differs by design
/// (random generators, BatchNorm statistics that are not broadcast) is not covered.
///
/// The same things are attached, in the same order, on every rank; they are referred to and must outlive the check.
/// `step`, `verdict` and `compare` are collective. In a world of one they do nothing.
class LOCKSTEP_API ReplicaCheck {
 public:
  explicit ReplicaCheck(const World& world, const ReplicaCheckOptions& options = {});
  ~ReplicaCheck();
  ReplicaCheck(ReplicaCheck&&) noexcept;
  ReplicaCheck& operator=(ReplicaCheck&&) noexcept;

  /// Parameters and buffers.
  ReplicaCheck& attach(const DataParallelBase& ddp);
  /// The same of a model that is not wrapped; its buffers count with CheckedBuffers::All only.
  ReplicaCheck& attach(const torch::nn::Module& module);
  /// Learning rates, step counts, moments, masters of its own, and parameters that no attached model has: with an
  /// attached Amp of level O2 they are its masters. State classes other than LibTorch's and Lockstep's are refused with
  /// InputError at the first check: see `cover`.
  ReplicaCheck& attach(torch::optim::Optimizer& optimizer);
  /// Loss scale and its counters, from the first scaled loss on.
  ReplicaCheck& attach(const amp::GradScaler& scaler);
  /// The same of all its losses; names masters.
  ReplicaCheck& attach(const amp::Amp& amp);
  /// Further tensors that are meant to be equal (an average of the weights, a codebook). `list` is called at each check
  /// and gives the same number on every rank.
  ReplicaCheck& cover(const std::string& name, std::function<std::vector<at::Tensor>()> list);

  /// After each optimizer step, on every rank. Compares at every `every`-th call, and does what `on_mismatch` says.
  void step();
  void operator()() { step(); }

  /// Compares now, on the device alone: may be captured in a CUDA graph (then host values, such as the learning rates
  /// of stock optimizers, count with what they were at capture).
  void compare();
  /// What the last comparison (or the last replay of a captured one) found: nothing where the replicas were equal, else
  /// the report, once `on_mismatch` has been done. Waits for the device.
  std::optional<ReplicaReport> verdict();

  /// Fingerprint of all that is covered, on this rank: the same for equal bits, whatever the number of ranks, the
  /// device and the memory format. Waits for the device.
  std::uint64_t digest() const;
  /// With ReplicaCheckOptions::gradients: the hash of this rank's own gradients in all reductions so far, else 0. A
  /// rank that computes right gets the same one each time that a training is repeated bit by bit. Waits for the device.
  std::uint64_t own_gradient_digest() const;
  /// Calls of `step` so far.
  std::int64_t steps() const;
  /// The newest report, if any mismatch was found.
  const std::optional<ReplicaReport>& last_report() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
