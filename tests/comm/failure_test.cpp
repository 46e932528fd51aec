// SPDX-License-Identifier: Apache-2.0
// One rank fails, leaves or calls something else: every rank ends with the same words.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::failure_of;
using test::quick_options;

// What each rank saw, by rank.
class Seen {
 public:
  explicit Seen(int ranks) : texts_(static_cast<std::size_t>(ranks)) {}

  /// Runs the body; keeps the first line of its WorldError and rethrows it.
  void record(const World& world, const std::function<void()>& body) {
    try {
      body();
    } catch (const WorldError& error) {
      const std::string text = error.what();
      texts_[static_cast<std::size_t>(world.rank())] = text.substr(0, text.find('\n'));
      throw;
    }
  }

  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

void train(const World& world, int steps) {
  const auto tensor = at::ones({1000});
  for (int step = 0; step < steps; ++step) {
    world.all_reduce(tensor, ReduceOp::Average, {"gradients", static_cast<std::uint32_t>(step)}).wait();
  }
}

class Failure : public testing::TestWithParam<int> {};

TEST_P(Failure, of_one_rank_reaches_all_in_its_own_words) {
  const int ranks = GetParam();
  Seen seen(ranks);
  const auto failure = failure_of(ranks, [&](World& world) {
    seen.record(world, [&] {
      train(world, 3);
      if (world.rank() == 1) {
        throw std::runtime_error("the solver diverged");
      }
      train(world, 1000000);
    });
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->origin(), 1);
  EXPECT_STREQ(failure->what(), "[rank 1] the solver diverged");
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(seen.texts()[static_cast<std::size_t>(rank)], rank == 1 ? "" : "[rank 1] the solver diverged");
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Failure, testing::Values(2, 3, 4));

}  // namespace
}  // namespace lockstep
