// SPDX-License-Identifier: Apache-2.0
// Which samples a rank gets, and in which order.
#include "lockstep/data/distributed_sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "data/sampler_support.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

std::vector<Indices> shares(std::size_t size, int world, const Options& options, std::uint64_t epoch = 0) {
  std::vector<Indices> all;
  for (int rank = 0; rank < world; ++rank) {
    DistributedSampler sampler(size, world, rank, options);
    all.push_back(epoch_of(sampler, epoch));
    EXPECT_EQ(all.back().size(), sampler.size());
    EXPECT_EQ(sampler.left(), 0U);
  }
  return all;
}

const std::vector<std::size_t> kSizes = {0, 1, 2, 3, 4, 5, 7, 8, 12, 13, 101};

TEST(DistributedSampler, deals_out_what_pytorch_deals_out) {
  std::ifstream file(LOCKSTEP_GOLDEN "/distributed_sampler.txt");
  std::string line;
  int lines = 0;
  while (std::getline(file, line)) {
    if (line.starts_with('#')) {
      continue;
    }
    ++lines;
    std::istringstream text(line);
    std::size_t size = 0;
    std::uint64_t epoch = 0;
    int replicas = 0;
    int rank = 0;
    Options options;
    char colon = 0;
    text >> size >> replicas >> rank >> options.seed >> epoch >> options.shuffle >> options.drop_last >> colon;
    Indices expected;
    for (std::size_t index = 0; text >> index;) {
      expected.push_back(index);
    }
    DistributedSampler sampler(size, replicas, rank, options);
    EXPECT_EQ(epoch_of(sampler, epoch), expected) << line;
  }
  EXPECT_EQ(lines, 31);
}

TEST(DistributedSampler, padded_shares_cover_all_samples_and_have_one_length) {
  for (const auto size : kSizes) {
    for (int world = 1; world <= 4; ++world) {
      const auto all = shares(size, world, {});
      const auto n = static_cast<std::size_t>(world);
      std::size_t total = 0;
      for (const auto& share : all) {
        EXPECT_EQ(share.size(), (size + n - 1) / n);
        total += share.size();
      }
      const auto seen = times_seen(size, all);
      EXPECT_LT(total - size, n);
      EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times >= 1; })) << size << " " << world;
    }
  }
}

TEST(DistributedSampler, shares_without_padding_hold_each_sample_once) {
  for (const bool shuffle : {true, false}) {
    for (const auto size : kSizes) {
      for (int world = 1; world <= 4; ++world) {
        const auto all = shares(size, world, {.shuffle = shuffle, .pad = false});
        EXPECT_EQ(times_seen(size, all), std::vector<int>(size, 1)) << size << " " << world;
        EXPECT_LE(all.front().size() - all.back().size(), 1U);
      }
    }
  }
}

TEST(DistributedSampler, drop_last_loses_less_than_one_sample_a_rank) {
  for (const auto size : kSizes) {
    for (int world = 1; world <= 4; ++world) {
      const auto all = shares(size, world, {.drop_last = true});
      std::size_t total = 0;
      for (const auto& share : all) {
        EXPECT_EQ(share.size(), size / static_cast<std::size_t>(world));
        total += share.size();
      }
      const auto seen = times_seen(size, all);
      EXPECT_LT(size - total, static_cast<std::size_t>(world));
      EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times <= 1; }));
    }
  }
}

TEST(DistributedSampler, a_world_larger_than_the_data) {
  EXPECT_EQ(times_seen(2, shares(2, 5, {})), (std::vector<int>{3, 2}));
  EXPECT_EQ(times_seen(2, shares(2, 5, {.pad = false})), (std::vector<int>{1, 1}));
  EXPECT_EQ(times_seen(2, shares(2, 5, {.drop_last = true})), (std::vector<int>{0, 0}));
}

// One global batch is the same set of samples, however many ranks share it: that makes runs comparable.
TEST(DistributedSampler, batches_of_all_ranks_together_do_not_depend_on_the_number_of_ranks) {
  DistributedSampler whole(24, 1, 0);
  DistributedSampler first(24, 2, 0);
  DistributedSampler second(24, 2, 1);
  while (auto batch = whole.next(8)) {
    auto joined = *first.next(4);
    const auto other = *second.next(4);
    joined.insert(joined.end(), other.begin(), other.end());
    EXPECT_EQ(std::set<std::size_t>(joined.begin(), joined.end()), std::set<std::size_t>(batch->begin(), batch->end()));
  }
}

TEST(DistributedSampler, orders_differ_between_epochs_and_seeds_and_come_back) {
  DistributedSampler sampler(50, 2, 1, {.seed = 4});
  const auto zero = epoch_of(sampler, 0);
  const auto one = epoch_of(sampler, 1);
  EXPECT_NE(zero, one);
  EXPECT_EQ(epoch_of(sampler, 0), zero);
  DistributedSampler other(50, 2, 1, {.seed = 40});
  EXPECT_NE(epoch_of(other, 0), zero);
}

TEST(DistributedSampler, neither_reads_nor_moves_the_default_generator) {
  at::manual_seed(1);
  DistributedSampler first(50, 2, 0);
  const auto order = rest_of(first);
  const auto draw = at::rand({1}).item<float>();
  at::manual_seed(1);
  EXPECT_EQ(at::rand({1}).item<float>(), draw);
  at::manual_seed(2);
  DistributedSampler second(50, 2, 0);
  EXPECT_EQ(rest_of(second), order);
}

// LibTorch's own sampler needs set_epoch() and reset(), in this order, or repeats one order for ever.
TEST(DistributedSampler, each_way_to_begin_an_epoch_gives_a_new_order) {
  DistributedSampler reference(8, 2, 0);
  DistributedSampler set_then_reset(8, 2, 0);
  DistributedSampler reset_then_set(8, 2, 0);
  DistributedSampler only_reset(8, 2, 0);
  std::set<Indices> orders;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    const auto expected = epoch_of(reference, epoch);
    orders.insert(expected);
    set_then_reset.set_epoch(epoch);
    set_then_reset.reset();
    EXPECT_EQ(rest_of(set_then_reset), expected);
    reset_then_set.reset();
    reset_then_set.set_epoch(epoch);
    EXPECT_EQ(rest_of(reset_then_set), expected);
    only_reset.reset();
    EXPECT_EQ(only_reset.epoch(), epoch);
    EXPECT_EQ(rest_of(only_reset), expected);
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST(DistributedSampler, an_epoch_left_early_is_begun_anew_or_followed_by_the_next) {
  DistributedSampler sampler(20, 2, 0);
  const auto zero = epoch_of(sampler, 0);
  sampler.set_epoch(0);
  sampler.next(4);
  sampler.set_epoch(0);
  EXPECT_EQ(rest_of(sampler), zero);
  sampler.set_epoch(0);
  sampler.next(4);
  sampler.reset();
  EXPECT_EQ(sampler.epoch(), 1U);
  EXPECT_EQ(sampler.left(), 10U);
}

TEST(DistributedSampler, reset_takes_a_new_size) {
  DistributedSampler sampler(20, 2, 0, {.shuffle = false});
  sampler.next(3);
  sampler.reset(6);
  EXPECT_EQ(sampler.epoch(), 1U);
  EXPECT_EQ(sampler.size(), 3U);
  EXPECT_EQ(rest_of(sampler), (Indices{0, 2, 4}));
  sampler.reset(0);
  EXPECT_EQ(sampler.next(1), std::nullopt);
}

TEST(DistributedSampler, refuses_wrong_arguments) {
  EXPECT_THROW(DistributedSampler(1, 0, 0), InputError);
  EXPECT_THROW(DistributedSampler(1, 2, 2), InputError);
  EXPECT_THROW(DistributedSampler(1, 2, -1), InputError);
  EXPECT_THROW(DistributedSampler(1, 2, 0, {.drop_last = true, .pad = false}), InputError);
  DistributedSampler sampler(1, 1, 0);
  EXPECT_THROW(sampler.next(0), InputError);
}

}  // namespace
}  // namespace lockstep::data
