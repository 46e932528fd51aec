// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/export.h"

namespace lockstep::data {

struct DistributedSamplerOptions {
  /// A new order for each epoch; false: the samples as they are numbered.
  bool shuffle = true;
  /// Chooses the orders. Must be the same on every rank.
  std::uint64_t seed = 0;
  /// Leaves out the tail of the order, so that every rank gets the same number of samples (less than one per rank
  /// lost).
  bool drop_last = false;
  /// Where samples do not divide evenly, repeats the first ones of the order, so that every rank gets the same number.
  /// False: every sample exactly once, and the last ranks may get one less. That is for evaluation; in training a rank
  /// with fewer batches would leave the others waiting.
  bool pad = true;
};

/// Gives each rank its share of `size` samples: sample numbers `order[rank]`, `order[rank + num_replicas]`, ... of an
/// order that is a function of seed and epoch alone: with the same options it is the one that PyTorch's
/// torch.utils.data.DistributedSampler gives. No other random generator is used or moved.
///
/// A sampler of torch::data, so it fits torch::data::make_data_loader. That function takes samplers by value: copies
/// share their place, so set_epoch() reaches the loader's copy. One thread at a time.
class LOCKSTEP_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Where a pass stands.
  struct State {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    /// Samples of this epoch's order that the ranks have taken, all together.
    std::uint64_t taken = 0;
  };

  /// Communicates nothing. Throws InputError unless 0 <= rank < num_replicas, and where both drop_last and no padding
  /// are asked for.
  DistributedSampler(std::size_t size, int num_replicas, int rank, const DistributedSamplerOptions& options = {});

  /// For this rank of `world`. All ranks must call it: it throws InputError, on every rank, where they do not agree on
  /// size and options, since shares would then overlap.
  DistributedSampler(std::size_t size, const World& world, const DistributedSamplerOptions& options = {});

  /// This rank's next samples, `batch_size` of them or what is left; nothing at the end of the epoch.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// Goes to the start of that epoch, before or after reset(). A place in that same epoch which load() or load_state()
  /// has just chosen is kept, so that a loop over epochs can be entered in the middle.
  void set_epoch(std::uint64_t epoch);

  /// Begins a pass: the next epoch if next() has been called in this one, else the epoch and place that set_epoch(),
  /// load() or load_state() chose. A data loader calls this. `new_size`: the number of samples is another from here on.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  std::uint64_t epoch() const;
  /// Number of samples that this rank gets in a whole epoch.
  std::size_t size() const;
  /// Number of samples that next() will still give in this epoch.
  std::size_t left() const;

  /// State of the pass under way, the same on every rank that has taken as many samples. A data loader with workers
  /// takes samples ahead of their use: then subtract num_replicas times those not yet used from `taken`.
  State state() const;
  /// Continues there, with samples that no rank has taken yet, also if the number of ranks is another than when the
  /// state was made. Throws InputError where the seed is another, or where more samples are taken than there are.
  void load_state(const State& state);

  /// state() and load_state() as an archive of torch::serialize; load() also refuses another number of samples.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep::data
