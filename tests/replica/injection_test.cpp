// SPDX-License-Identifier: Apache-2.0
// One flipped bit in the middle of training, anywhere, is found at the next check and named; nothing else is.
#include <cmath>
#include <random>

#include "replica/training.h"

namespace lockstep {
namespace {

using test::Training;
using test::Victim;

struct Fault {
  std::size_t victim;
  std::int64_t flat;
  std::int64_t bit;
  int rank;
  int steps_before_check;
};

/// Bits of a float's fraction, high enough that the optimizer's arithmetic does not round the fault away (which would
/// leave nothing to find), and low enough that the numbers stay ordinary ones.
std::int64_t lasting_bit(std::mt19937& random, const at::Tensor& tensor) {
  if (!tensor.is_floating_point()) {
    return static_cast<std::int64_t>(random() % 8);
  }
  const std::int64_t fraction = tensor.scalar_type() == at::kDouble     ? 52
                                : tensor.scalar_type() == at::kBFloat16 ? 7
                                                                        : 23;
  return fraction - 1 - static_cast<std::int64_t>(random() % 4);
}

/// What the next step overwrites, or rounds away, is found only before it.
bool lasts(const Victim& victim, std::int64_t flat) {
  // An update without an overflow sets both counters of overflows anew.
  const bool overwritten = victim.kind == StateKind::Buffer || victim.name.ends_with("_skips_in_a_row") ||
                           victim.name.ends_with("_hysteresis_tracker");
  const auto value = std::abs(victim.get().reshape({-1})[flat].item<double>());
  return !overwritten && (victim.kind != StateKind::Moment || value > 1e-12);
}

Fault draw(std::mt19937& random, const std::vector<Victim>& victims, int ranks, int trial) {
  Fault fault;
  fault.victim = random() % victims.size();
  const auto tensor = victims[fault.victim].get();
  const std::int64_t last = tensor.numel() - 1;
  fault.flat = trial % 3 == 0 ? 0 : trial % 3 == 1 ? last / 2 : last;
  fault.rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
  fault.steps_before_check = lasts(victims[fault.victim], fault.flat) ? static_cast<int>(random() % 3) : 0;
  fault.bit = fault.steps_before_check == 0 ? static_cast<std::int64_t>(random() % (8U * tensor.element_size()))
                                            : lasting_bit(random, tensor);
  if (tensor.scalar_type() == at::kBool) {
    fault.bit = 0;
  }
  return fault;
}

const ReplicaDifference* find(const ReplicaReport& report, const Victim& victim) {
  for (const auto& difference : report.differences) {
    if (difference.kind == victim.kind && difference.name == victim.name) {
      return &difference;
    }
  }
  return nullptr;
}

std::int64_t ravel(const std::vector<std::int64_t>& index, at::IntArrayRef sizes) {
  std::int64_t flat = 0;
  for (std::size_t dim = 0; dim < index.size(); ++dim) {
    flat = flat * sizes[dim] + index[dim];
  }
  return flat;
}

void expect_named(const std::optional<ReplicaReport>& report, const Victim& victim, const Fault& fault, int ranks) {
  ASSERT_TRUE(report.has_value()) << "missed: " << to_string(victim.kind) << " " << victim.name << " bit " << fault.bit;
  const auto* found = find(*report, victim);
  ASSERT_NE(found, nullptr) << victim.name << "\n" << report->text();
  EXPECT_EQ(ravel(found->index, victim.get().sizes()), fault.flat) << report->text();
  EXPECT_EQ(found->majority, ranks > 2);
  EXPECT_EQ(found->ranks, std::vector<int>{ranks > 2 ? fault.rank : 1}) << report->text();
  if (fault.steps_before_check == 0) {
    EXPECT_EQ(report->differing, 1) << report->text();
  }
}

/// Same words on all ranks.
void expect_common(const World& world, const std::optional<ReplicaReport>& report) {
  const auto mine = report ? report->text() : "nothing";
  for (const auto& theirs : world.all_gather_text(mine)) {
    EXPECT_EQ(theirs, mine);
  }
}

void run_trial(const World& world, Training& training, std::mt19937& random, int trial) {
  const auto victims = test::victims_of(training);
  const auto fault = draw(random, victims, world.size(), trial);
  const auto& victim = victims[fault.victim];
  training.train();
  training.check_.compare();
  ASSERT_FALSE(training.check_.verdict().has_value());
  const auto saved = victim.get().clone();
  if (world.rank() == fault.rank) {
    test::flip(victim, fault.flat, fault.bit);
  }
  for (int step = 0; step < fault.steps_before_check; ++step) {
    training.train();
  }
  training.check_.compare();
  const auto report = training.check_.verdict();
  expect_named(report, victim, fault, world.size());
  expect_common(world, report);
  test::restore(victim, saved);  // of two ranks the faulty one may have been copied
}

void run_trials(int ranks, int trials) {
  test::run(ranks, [&](World& world) {
    Training training(world, {.on_mismatch = OnMismatch::Resync});
    training.train();
    std::mt19937 random(static_cast<unsigned>(2026 + ranks));
    for (int trial = 0; trial < trials && !::testing::Test::HasFatalFailure(); ++trial) {
      run_trial(world, training, random, trial);
    }
  });
}

TEST(Injection, two_ranks_66_faults_none_missed) {
  run_trials(2, 66);
}
TEST(Injection, three_ranks_67_faults_none_missed) {
  run_trials(3, 67);
}
TEST(Injection, four_ranks_67_faults_none_missed) {
  run_trials(4, 67);
}

void run_clean(int ranks, int steps) {
  test::run(ranks, [&](World& world) {
    Training training(world, {.every = 1});
    for (int step = 0; step < steps; ++step) {
      training.train();
      ASSERT_NO_THROW(training.check_());
    }
    EXPECT_EQ(training.check_.steps(), steps);
    EXPECT_FALSE(training.check_.last_report().has_value());
  });
}

TEST(Injection, clean_training_raises_no_alarm_in_5000_steps) {
  run_clean(2, 4000);
  run_clean(3, 500);
  run_clean(4, 500);
}

}  // namespace
}  // namespace lockstep
