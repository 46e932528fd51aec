// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <string>

#include "core/check.h"

namespace lockstep::data {
namespace {

using core::str;

constexpr const char* kWhere = "data.DistributedSampler";

std::string describe(std::size_t size, const DistributedSamplerOptions& options) {
  return str("size ", size, ", seed ", options.seed, ", shuffle ", options.shuffle, ", drop_last ", options.drop_last,
             ", pad ", options.pad);
}

// Comes before any check of this rank's own arguments: a rank that threw here alone would leave the others waiting.
const World& agree(const World& world, std::size_t size, const DistributedSamplerOptions& options) {
  const auto all = world.all_gather_text(describe(size, options), {.name = "DistributedSampler"});
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    core::check(all[rank] == all[0], kWhere, [&]() -> core::Problem {
      return {"ranks differ, so their shares would overlap", str("rank ", rank, ": ", all[rank]),
              str("rank 0's ", all[0]), "give every rank the same data and options"};
    });
  }
  return world;
}

// The generator is seeded as PyTorch's sampler does it, and is our own: nobody else's draws can change the order.
at::Tensor shuffled(std::size_t size, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randperm(static_cast<std::int64_t>(size), generator, at::TensorOptions(at::kLong));
}

c10::IValue to_ivalue(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

std::uint64_t read(torch::serialize::InputArchive& archive, const char* key) {
  c10::IValue value;
  core::check(archive.try_read(key, value) && value.isInt(), kWhere,
              [&] { return core::Problem{.what = str("the archive holds no sampler: no number '", key, "' in it")}; });
  return static_cast<std::uint64_t>(value.toInt());
}

}  // namespace

class DistributedSampler::Impl {
 public:
  Impl(std::size_t size, int replicas, int rank, const DistributedSamplerOptions& options)
      : size_(size),
        replicas_(static_cast<std::size_t>(replicas)),
        rank_(static_cast<std::size_t>(rank)),
        options_(options) {
    core::check(replicas > 0 && rank >= 0 && rank < replicas, kWhere, [&]() -> core::Problem {
      return {"rank is not one of the replicas", str("rank ", rank, " of ", replicas), "0 <= rank < num_replicas"};
    });
    core::check(options.pad || !options.drop_last, kWhere, []() -> core::Problem {
      return {.what = "drop_last leaves the uneven tail out, and pad = false hands it out", .advice = "choose one"};
    });
  }

  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) {
    core::check(batch_size > 0, kWhere, [] { return core::Problem{"batch size", "0", "at least 1"}; });
    begun_ = true;
    const auto count = std::min(batch_size, left());
    if (count == 0) {
      return std::nullopt;
    }
    std::vector<std::size_t> batch(count);
    for (auto& sample : batch) {
      sample = sample_at(start_ + rank_ + replicas_ * position_++);
    }
    return batch;
  }

  void go_to(const State& place) {
    if (place.epoch != epoch_) {
      order_.reset();
    }
    epoch_ = place.epoch;
    start_ = place.taken;
    position_ = 0;
    begun_ = false;
  }

  void set_epoch(std::uint64_t epoch) {
    if (begun_ || epoch != epoch_) {
      go_to({.epoch = epoch});
    }
  }

  void reset(std::optional<std::size_t> new_size) {
    const bool resized = new_size.has_value() && *new_size != size_;
    if (begun_ || resized) {
      go_to({.epoch = epoch_ + (begun_ ? 1 : 0)});
    }
    if (resized) {
      size_ = *new_size;
      order_.reset();
    }
  }

  std::uint64_t epoch() const { return epoch_; }
  std::size_t left() const { return share(size_ - start_) - position_; }
  std::size_t epoch_size() const { return share(size_); }
  std::size_t samples() const { return size_; }

  State state() const {
    // Padding hands out more than there is.
    return {options_.seed, epoch_, std::min<std::uint64_t>(start_ + position_ * replicas_, size_)};
  }

  void load(const State& state) {
    core::check(state.seed == options_.seed, kWhere, [&]() -> core::Problem {
      return {"the state belongs to other orders", str("seed ", state.seed), str("seed ", options_.seed),
              "construct the sampler with the seed it was saved with"};
    });
    core::check(state.taken <= size_, kWhere, [&]() -> core::Problem {
      return {"the state belongs to more samples", str(state.taken, " taken"), str("at most ", size_)};
    });
    go_to(state);
  }

 private:
  // How many of `count` samples, dealt out in turn, are this rank's.
  std::size_t share(std::size_t count) const {
    if (options_.drop_last) {
      return count / replicas_;
    }
    if (options_.pad) {
      return (count + replicas_ - 1) / replicas_;
    }
    return (count + replicas_ - 1 - rank_) / replicas_;
  }

  std::size_t sample_at(std::size_t place) {
    place %= size_;
    if (!options_.shuffle) {
      return place;
    }
    if (!order_.defined()) {
      order_ = shuffled(size_, options_.seed + epoch_);
    }
    return static_cast<std::size_t>(order_.const_data_ptr<std::int64_t>()[place]);
  }

  std::size_t size_;
  std::size_t replicas_;
  std::size_t rank_;
  DistributedSamplerOptions options_;
  std::uint64_t epoch_ = 0;
  std::size_t start_ = 0;     // place in the order at which the pass began
  std::size_t position_ = 0;  // samples this rank has taken since
  bool begun_ = false;        // next() has been called since
  at::Tensor order_;          // of epoch_, made when first needed
};

DistributedSampler::DistributedSampler(std::size_t size, int num_replicas, int rank,
                                       const DistributedSamplerOptions& options)
    : impl_(std::make_shared<Impl>(size, num_replicas, rank, options)) {}

DistributedSampler::DistributedSampler(std::size_t size, const World& world, const DistributedSamplerOptions& options)
    : DistributedSampler(size, agree(world, size, options).size(), world.rank(), options) {}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  return impl_->next(batch_size);
}
void DistributedSampler::set_epoch(std::uint64_t epoch) {
  impl_->set_epoch(epoch);
}
void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  impl_->reset(new_size);
}
std::uint64_t DistributedSampler::epoch() const {
  return impl_->epoch();
}
std::size_t DistributedSampler::size() const {
  return impl_->epoch_size();
}
std::size_t DistributedSampler::left() const {
  return impl_->left();
}
DistributedSampler::State DistributedSampler::state() const {
  return impl_->state();
}
void DistributedSampler::load_state(const State& state) {
  impl_->load(state);
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto place = state();
  archive.write("seed", to_ivalue(place.seed));
  archive.write("epoch", to_ivalue(place.epoch));
  archive.write("taken", to_ivalue(place.taken));
  archive.write("size", to_ivalue(impl_->samples()));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const auto size = read(archive, "size");
  core::check(size == impl_->samples(), kWhere, [&]() -> core::Problem {
    return {"the archive belongs to other data", str(size, " samples"), str(impl_->samples())};
  });
  load_state({read(archive, "seed"), read(archive, "epoch"), read(archive, "taken")});
}

}  // namespace lockstep::data
