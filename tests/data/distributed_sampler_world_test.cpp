// SPDX-License-Identifier: Apache-2.0
// Samplers of a world's ranks, which must agree.
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>

#include "data/sampler_support.h"
#include "lockstep/comm/launch.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

TEST(DistributedSampler, gives_each_rank_of_a_world_its_share) {
  for (int size = 1; size <= 4; ++size) {
    std::mutex mutex;
    std::vector<Indices> all;
    run_ranks(size, [&](World& world) {
      DistributedSampler sampler(13, world, {.pad = false});
      auto share = rest_of(sampler);
      const std::lock_guard lock(mutex);
      all.push_back(std::move(share));
    });
    EXPECT_EQ(times_seen(13, all), std::vector<int>(13, 1));
  }
}

// What every rank of a world of three says to these arguments of rank 2; rank 0 and 1 ask for 10 samples.
std::set<std::string> refusals(std::size_t size_of_last, const Options& options_of_last) {
  std::mutex mutex;
  std::set<std::string> texts;
  run_ranks(3, [&](World& world) {
    const bool last = world.rank() == 2;
    std::string text = "accepted";
    try {
      DistributedSampler(last ? size_of_last : 10, world, last ? options_of_last : Options{});
    } catch (const InputError& error) {
      text = error.what();
    }
    world.barrier();
    const std::lock_guard lock(mutex);
    texts.insert(text);
  });
  return texts;
}

TEST(DistributedSampler, refuses_ranks_that_differ_on_every_rank_with_one_text) {
  const auto seeds = refusals(10, {.seed = 7});
  ASSERT_EQ(seeds.size(), 1U);
  EXPECT_NE(seeds.begin()->find("rank 2: size 10, seed 7"), std::string::npos) << *seeds.begin();
  const auto sizes = refusals(11, {});
  ASSERT_EQ(sizes.size(), 1U);
  EXPECT_NE(sizes.begin()->find("size 11"), std::string::npos) << *sizes.begin();
  const auto contradiction = refusals(10, {.drop_last = true, .pad = false});
  ASSERT_EQ(contradiction.size(), 1U);
  EXPECT_NE(contradiction.begin()->find("ranks differ"), std::string::npos) << *contradiction.begin();
  EXPECT_EQ(refusals(10, {}), std::set<std::string>{"accepted"});
}

}  // namespace
}  // namespace lockstep::data
