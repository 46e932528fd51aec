// SPDX-License-Identifier: Apache-2.0
// Restarts within an epoch, archives, data loaders.
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/serialize/archive.h>

#include <sstream>
#include <string>

#include "data/sampler_support.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

// Samples taken before and after the state is moved to samplers of `world_after` ranks.
std::vector<int> seen_over_a_restart(std::size_t size, int world, int world_after, const Options& options) {
  std::vector<Indices> all;
  DistributedSampler::State state;
  for (int rank = 0; rank < world; ++rank) {
    DistributedSampler sampler(size, world, rank, options);
    sampler.set_epoch(3);
    all.push_back(*sampler.next(2));
    state = sampler.state();
  }
  EXPECT_EQ(state.taken, 2U * static_cast<unsigned>(world));
  for (int rank = 0; rank < world_after; ++rank) {
    DistributedSampler sampler(size, world_after, rank, options);
    sampler.load_state(state);
    sampler.set_epoch(3);
    sampler.reset();
    EXPECT_EQ(sampler.epoch(), 3U);
    all.push_back(rest_of(sampler));
  }
  return times_seen(size, all);
}

TEST(DistributedSampler, a_restart_within_an_epoch_sees_the_rest_once_on_any_number_of_ranks) {
  for (int world = 1; world <= 4; ++world) {
    for (int world_after = 1; world_after <= 4; ++world_after) {
      EXPECT_EQ(seen_over_a_restart(13, world, world_after, {.pad = false}), std::vector<int>(13, 1))
          << world << " then " << world_after;
    }
  }
}

TEST(DistributedSampler, a_restart_on_as_many_ranks_gives_the_very_order) {
  DistributedSampler straight(21, 2, 1, {.seed = 9});
  straight.set_epoch(5);
  straight.next(4);
  DistributedSampler resumed(21, 2, 1, {.seed = 9});
  resumed.load_state(straight.state());
  EXPECT_EQ(resumed.left(), straight.left());
  EXPECT_EQ(rest_of(resumed), rest_of(straight));
  resumed.reset();
  straight.reset();
  EXPECT_EQ(rest_of(resumed), rest_of(straight));
}

TEST(DistributedSampler, the_state_of_a_finished_epoch_leads_to_the_next) {
  DistributedSampler done(7, 2, 0);
  rest_of(done);
  EXPECT_EQ(done.state().taken, 7U);
  DistributedSampler resumed(7, 2, 0);
  resumed.load_state(done.state());
  EXPECT_EQ(resumed.next(1), std::nullopt);
  resumed.reset();
  EXPECT_EQ(resumed.epoch(), 1U);
}

std::string archive_of(const DistributedSampler& sampler) {
  std::ostringstream out;
  torch::serialize::OutputArchive archive;
  sampler.save(archive);
  archive.save_to(out);
  return out.str();
}

void load_from(const std::string& bytes, DistributedSampler& sampler) {
  std::istringstream in(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  sampler.load(archive);
}

TEST(DistributedSampler, survives_an_archive) {
  const std::uint64_t seed = ~std::uint64_t{0} - 2;
  DistributedSampler saved(30, 3, 2, {.seed = seed});
  saved.set_epoch(6);
  saved.next(3);
  DistributedSampler loaded(30, 3, 2, {.seed = seed});
  load_from(archive_of(saved), loaded);
  EXPECT_EQ(loaded.epoch(), 6U);
  EXPECT_EQ(rest_of(loaded), rest_of(saved));
}

TEST(DistributedSampler, refuses_a_state_that_does_not_fit_and_stays_as_it_was) {
  DistributedSampler sampler(10, 2, 0, {.seed = 1});
  sampler.next(2);
  EXPECT_THROW(sampler.load_state({.seed = 2, .epoch = 0, .taken = 0}), InputError);
  EXPECT_THROW(sampler.load_state({.seed = 1, .epoch = 0, .taken = 11}), InputError);
  DistributedSampler larger(11, 2, 0, {.seed = 1});
  EXPECT_THROW(load_from(archive_of(larger), sampler), InputError);
  std::ostringstream out;
  torch::serialize::OutputArchive empty;
  empty.save_to(out);
  EXPECT_THROW(load_from(out.str(), sampler), InputError);
  EXPECT_EQ(sampler.left(), 3U);
  EXPECT_EQ(sampler.epoch(), 0U);
}

struct Numbers : torch::data::datasets::BatchDataset<Numbers, Indices> {
  Indices get_batch(at::ArrayRef<std::size_t> indices) override { return indices.vec(); }
  std::optional<std::size_t> size() const override { return 9; }
};

TEST(DistributedSampler, steers_a_data_loader_that_holds_a_copy) {
  DistributedSampler sampler(9, 2, 1, {.seed = 2});
  DistributedSampler reference(9, 2, 1, {.seed = 2});
  auto loader = torch::data::make_data_loader(Numbers{}, sampler, torch::data::DataLoaderOptions(2));
  for (const std::uint64_t epoch : {4U, 2U}) {
    sampler.set_epoch(epoch);
    Indices seen;
    for (const auto& batch : *loader) {
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    EXPECT_EQ(seen, epoch_of(reference, epoch));
  }
}

}  // namespace
}  // namespace lockstep::data
