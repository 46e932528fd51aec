// SPDX-License-Identifier: Apache-2.0
// Every schedule beside Python's values, which tests/golden/lr_schedule.py wrote.
#include "lockstep/optim/lr_schedule.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <fstream>
#include <map>
#include <sstream>

#include "lockstep/error.h"

namespace lockstep::optim {
namespace {

using Sequences = std::map<std::string, std::vector<double>>;

const Sequences& golden() {
  static const Sequences sequences = [] {
    std::ifstream file(LOCKSTEP_GOLDEN "/lr_schedule.txt");
    Sequences read;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name, value;
      words >> name;
      while (words >> value) {
        read[name].push_back(std::stod(value));  // "nan" too
      }
    }
    return read;
  }();
  return sequences;
}

torch::optim::SGD make_optimizer(double rate = 0.5) {
  return torch::optim::SGD({at::zeros({1}).requires_grad_()}, torch::optim::SGDOptions(rate).momentum(0.9));
}

void expect_equal(const std::string& name, const std::vector<double>& ours) {
  ASSERT_TRUE(golden().count(name)) << name;
  const auto& theirs = golden().at(name);
  ASSERT_EQ(ours.size(), theirs.size()) << name;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    // Python multiplies the last rate, step by step: its roundings add up.
    EXPECT_NEAR(ours[i], theirs[i], 1e-13) << name << " at step " << i;
  }
}

std::map<std::string, Schedule> schedules() {
  return {
      {"step", step_lr(3, 0.1)},
      {"multi_step", multi_step_lr({2, 5, 5, 11}, 0.5)},
      {"exponential", exponential_lr(0.9)},
      {"constant", constant_lr(0.25, 4)},
      {"linear", linear_lr(0.25, 0.75, 7)},
      {"polynomial", polynomial_lr(10, 2)},
      {"cosine", cosine_annealing_lr(10, 0.01)},
      {"restarts", cosine_annealing_warm_restarts(4, 1, 0.01)},
      {"restarts_longer", cosine_annealing_warm_restarts(3, 2, 0.01)},
      {"lambda", lambda_lr([](std::int64_t t) { return 1.0 / static_cast<double>(1 + t); })},
      {"one_cycle", one_cycle_lr({.max_lr = 2, .total_steps = 25})},
      {"one_cycle_linear", one_cycle_lr({.max_lr = 2, .total_steps = 25, .pct_start = 0.4, .cosine = false})},
      {"one_cycle_three", one_cycle_lr({.max_lr = 2, .total_steps = 25, .final_div_factor = 100, .three_phase = true})},
      {"chained", chained({constant_lr(0.5, 6), exponential_lr(0.8), step_lr(5, 0.3)})},
      {"sequential", sequential({constant_lr(0.5, 20), exponential_lr(0.8), step_lr(2, 0.5)}, {4, 9})},
      {"warm_up", warm_up(5, cosine_annealing_lr(20), 0.1)}};
}

TEST(LrSchedule, every_value_equals_pythons) {
  for (const auto& [name, schedule] : schedules()) {
    auto optimizer = make_optimizer();
    LrScheduler scheduler(optimizer, schedule);
    std::vector<double> rates, momenta;
    for (std::size_t step = 0; step < golden().at(name).size(); ++step) {
      rates.push_back(scheduler.learning_rates()[0]);
      momenta.push_back(static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).momentum());
      scheduler.step();
    }
    expect_equal(name, rates);
    if (schedule.momentum) {
      expect_equal(name + "/momentum", momenta);
    }
  }
}

TEST(LrSchedule, plateau_equals_pythons) {
  const std::map<std::string, PlateauOptions> runs{
      {"plateau_min", {.patience = 2}},
      {"plateau_abs", {.factor = 0.5, .patience = 1, .threshold = 0.05, .relative_threshold = false}},
      {"plateau_cooldown", {.factor = 0.5, .patience = 1, .cooldown = 2, .min_lr = {0.1}}},
      {"plateau_max", {.maximize = true, .patience = 2}},
      {"plateau_max_abs",
       {.maximize = true, .factor = 0.5, .patience = 1, .threshold = 0.5, .relative_threshold = false}}};
  for (const auto& [name, options] : runs) {
    auto optimizer = make_optimizer();
    ReduceLrOnPlateau scheduler(optimizer, options);
    std::vector<double> rates;
    for (const double metric : golden().at(options.maximize ? "rising" : "metrics")) {
      scheduler.step(metric);
      rates.push_back(optimizer.param_groups()[0].options().get_lr());
    }
    expect_equal(name, rates);
  }
}

TEST(LrSchedule, any_step_can_be_asked_for_at_any_time) {
  auto optimizer = make_optimizer();
  LrScheduler scheduler(optimizer, step_lr(3, 0.1));
  scheduler.step_to(7);
  EXPECT_NEAR(scheduler.learning_rates()[0], 0.005, 1e-16);
  scheduler.step_to(2);
  EXPECT_EQ(scheduler.learning_rates()[0], 0.5);
  EXPECT_EQ(scheduler.steps(), 2);
}

TEST(LrSchedule, step_counts_from_the_first_optimizer_step_not_one_late) {
  auto optimizer = make_optimizer(1);
  LrScheduler scheduler(optimizer, step_lr(3, 0.1));
  std::vector<double> rates;
  for (int i = 0; i < 7; ++i) {
    rates.push_back(scheduler.learning_rates()[0]);
    scheduler.step();
  }
  for (std::size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(rates[i], std::vector<double>({1, 1, 1, .1, .1, .1, .01})[i], 1e-15) << i;
  }
}

TEST(LrSchedule, groups_keep_their_own_base_and_may_have_their_own_schedule) {
  const auto parameter = [] { return at::zeros({1}).requires_grad_(); };
  torch::optim::SGD optimizer({parameter()}, torch::optim::SGDOptions(1.0));
  optimizer.add_param_group({{parameter()}, std::make_unique<torch::optim::SGDOptions>(8.0)});
  LrScheduler scheduler(optimizer, std::vector{exponential_lr(0.5), exponential_lr(0.25)});
  scheduler.step();
  EXPECT_EQ(scheduler.learning_rates(), (std::vector<double>{0.5, 2.0}));
  optimizer.add_param_group({{parameter()}, std::make_unique<torch::optim::SGDOptions>(16.0)});
  scheduler.step();
  EXPECT_EQ(scheduler.learning_rates(), (std::vector<double>{0.25, 0.5, 1.0}));
  EXPECT_THROW(LrScheduler(optimizer, std::vector{exponential_lr(0.5)}), InputError);
}

TEST(LrSchedule, one_cycle_moves_adams_first_beta) {
  torch::optim::AdamW optimizer({at::zeros({1}).requires_grad_()}, torch::optim::AdamWOptions(0.5));
  LrScheduler scheduler(optimizer, one_cycle_lr({.max_lr = 2, .total_steps = 25}));
  const auto& betas = static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).betas();
  EXPECT_DOUBLE_EQ(std::get<0>(betas), 0.95);
  EXPECT_EQ(std::get<1>(betas), 0.999);
}

TEST(LrSchedule, resumes_where_it_was_saved) {
  auto optimizer = make_optimizer();
  LrScheduler scheduler(optimizer, warm_up(5, cosine_annealing_lr(20)));
  for (int i = 0; i < 9; ++i) {
    scheduler.step();
  }
  std::stringstream file;
  torch::save(scheduler, file);
  // As after loading the optimizer's own checkpoint: its rate is no longer the base.
  auto resumed_optimizer = make_optimizer(scheduler.learning_rates()[0]);
  LrScheduler resumed(resumed_optimizer, warm_up(5, cosine_annealing_lr(20)));
  torch::load(resumed, file);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(resumed.learning_rates(), scheduler.learning_rates()) << i;
    scheduler.step();
    resumed.step();
  }
}

TEST(LrSchedule, plateau_resumes_where_it_was_saved) {
  auto optimizer = make_optimizer();
  ReduceLrOnPlateau scheduler(optimizer, {.patience = 2, .cooldown = 1});
  auto resumed_optimizer = make_optimizer();
  ReduceLrOnPlateau resumed(resumed_optimizer, {.patience = 2, .cooldown = 1});
  const auto& metrics = golden().at("metrics");
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    scheduler.step(metrics[i]);
    if (i == 8) {
      std::stringstream file;
      torch::save(scheduler, file);
      torch::load(resumed, file);
    } else if (i > 8) {
      resumed.step(metrics[i]);
      EXPECT_EQ(resumed_optimizer.param_groups()[0].options().get_lr(), optimizer.param_groups()[0].options().get_lr());
      EXPECT_EQ(resumed.best(), scheduler.best());
      EXPECT_EQ(resumed.bad_steps(), scheduler.bad_steps());
    }
  }
}

TEST(LrSchedule, bad_arguments_are_refused) {
  EXPECT_THROW(step_lr(0), InputError);
  EXPECT_THROW(multi_step_lr({5, 2}), InputError);
  EXPECT_THROW(linear_lr(0), InputError);
  EXPECT_THROW(linear_lr(0.5, 1.5), InputError);
  EXPECT_THROW(cosine_annealing_lr(0), InputError);
  EXPECT_THROW(cosine_annealing_warm_restarts(3, 0), InputError);
  EXPECT_THROW(one_cycle_lr({.max_lr = 1}), InputError);
  EXPECT_THROW(one_cycle_lr({.max_lr = 1, .total_steps = 10, .pct_start = 0}), InputError);
  EXPECT_THROW(sequential({exponential_lr(1)}, {3}), InputError);
  EXPECT_THROW(chained({}), InputError);
  EXPECT_THROW(lambda_lr({}), InputError);
  auto optimizer = make_optimizer();
  EXPECT_THROW(ReduceLrOnPlateau(optimizer, {.factor = 1}), InputError);
}

}  // namespace
}  // namespace lockstep::optim
