// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"

namespace lockstep::optim {
namespace {

using std::int64_t;

void require(bool ok, const char* schedule, const char* what) {
  core::check(ok, core::str("optim.", schedule), [&] { return core::Problem{.what = what}; });
}

Schedule times(std::function<double(int64_t)> factor) {
  return {[factor = std::move(factor)](double base, int64_t step) { return base * factor(step); }};
}

double half_cosine(double from, double to, double part) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

double straight(double from, double to, double part) {
  return from + (to - from) * part;
}

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// Ends of the phases of a cycle, and the values there: values[i] at ends[i - 1], values[i + 1] at ends[i].
struct Phases {
  std::vector<double> ends;
  std::vector<double> values;
  bool cosine;

  double at(int64_t step) const {
    const auto now = std::min(static_cast<double>(step), ends.back());
    double start = 0;
    std::size_t i = 0;
    while (now > ends[i]) {
      start = ends[i++];
    }
    const double part = (now - start) / (ends[i] - start);
    return cosine ? half_cosine(values[i], values[i + 1], part) : straight(values[i], values[i + 1], part);
  }
};

std::vector<double> one_cycle_ends(const OneCycleOptions& o) {
  const auto total = static_cast<double>(o.total_steps);
  const double top = o.pct_start * total - 1;
  return o.three_phase ? std::vector{top, 2 * o.pct_start * total - 2, total - 1} : std::vector{top, total - 1};
}

}  // namespace

Schedule step_lr(int64_t step_size, double gamma) {
  require(step_size > 0, "step_lr", "step_size must be at least 1");
  return times([=](int64_t step) { return std::pow(gamma, static_cast<double>(step / step_size)); });
}

Schedule multi_step_lr(std::vector<int64_t> milestones, double gamma) {
  require(std::is_sorted(milestones.begin(), milestones.end()), "multi_step_lr", "milestones must rise");
  return times([milestones = std::move(milestones), gamma](int64_t step) {
    const auto reached = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    return std::pow(gamma, static_cast<double>(reached));
  });
}

Schedule exponential_lr(double gamma) {
  return times([=](int64_t step) { return std::pow(gamma, static_cast<double>(step)); });
}

Schedule constant_lr(double factor, int64_t total_iters) {
  require(factor >= 0 && factor <= 1, "constant_lr", "factor must lie in [0, 1]");
  return times([=](int64_t step) { return step < total_iters ? factor : 1.0; });
}

Schedule linear_lr(double start_factor, double end_factor, int64_t total_iters) {
  require(start_factor > 0 && start_factor <= 1, "linear_lr", "start_factor must lie in (0, 1]");
  require(end_factor >= 0 && end_factor <= 1, "linear_lr", "end_factor must lie in [0, 1]");
  require(total_iters > 0, "linear_lr", "total_iters must be at least 1");
  return times([=](int64_t step) {
    return straight(start_factor, end_factor, ratio(std::min(step, total_iters), total_iters));
  });
}

Schedule polynomial_lr(int64_t total_iters, double power) {
  require(total_iters > 0, "polynomial_lr", "total_iters must be at least 1");
  return times([=](int64_t step) { return std::pow(1 - ratio(std::min(step, total_iters), total_iters), power); });
}

Schedule cosine_annealing_lr(int64_t t_max, double eta_min) {
  require(t_max > 0, "cosine_annealing_lr", "t_max must be at least 1");
  return {[=](double base, int64_t step) { return half_cosine(base, eta_min, ratio(step, t_max)); }};
}

Schedule cosine_annealing_warm_restarts(int64_t t_0, int64_t t_mult, double eta_min) {
  require(t_0 > 0, "cosine_annealing_warm_restarts", "t_0 must be at least 1");
  require(t_mult > 0, "cosine_annealing_warm_restarts", "t_mult must be at least 1");
  return {[=](double base, int64_t step) {
    int64_t period = t_0;
    if (t_mult == 1) {
      step %= t_0;
    }
    while (step >= period) {
      step -= period;
      period *= t_mult;
    }
    return half_cosine(base, eta_min, ratio(step, period));
  }};
}

Schedule lambda_lr(std::function<double(int64_t)> factor) {
  require(static_cast<bool>(factor), "lambda_lr", "the function is empty");
  return times(std::move(factor));
}

Schedule one_cycle_lr(const OneCycleOptions& o) {
  const auto ends = one_cycle_ends(o);
  require(o.max_lr > 0, "one_cycle_lr", "max_lr must be above 0");
  require(o.pct_start >= 0 && o.pct_start <= 1, "one_cycle_lr", "pct_start must lie in [0, 1]");
  require(o.div_factor > 0 && o.final_div_factor > 0, "one_cycle_lr", "the div factors must be above 0");
  require(ends.front() > 0 && std::adjacent_find(ends.begin(), ends.end(), std::greater_equal<>()) == ends.end(),
          "one_cycle_lr", "every phase needs at least a step: raise total_steps or change pct_start");
  const double first = o.max_lr / o.div_factor;
  const double last = first / o.final_div_factor;
  const auto high = o.max_momentum;
  Phases rate{ends, {first, o.max_lr, last}, o.cosine};
  Phases momentum{ends, {high, o.base_momentum, high}, o.cosine};
  if (o.three_phase) {
    rate.values = {first, o.max_lr, first, last};
    momentum.values = {high, o.base_momentum, high, high};
  }
  Schedule schedule{[rate](double, int64_t step) { return rate.at(step); }};
  if (o.cycle_momentum) {
    schedule.momentum = [momentum](int64_t step) { return momentum.at(step); };
  }
  return schedule;
}

Schedule chained(std::vector<Schedule> schedules) {
  require(!schedules.empty(), "chained", "no schedule given");
  Schedule result;
  for (const auto& schedule : schedules) {
    if (schedule.momentum) {
      result.momentum = schedule.momentum;
    }
  }
  result.rate = [schedules = std::move(schedules)](double base, int64_t step) {
    for (const auto& schedule : schedules) {
      base = schedule.rate(base, step);
    }
    return base;
  };
  return result;
}

Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones) {
  require(schedules.size() == milestones.size() + 1, "sequential", "one milestone is needed between two schedules");
  require(std::is_sorted(milestones.begin(), milestones.end()), "sequential", "milestones must rise");
  return {[schedules = std::move(schedules), milestones = std::move(milestones)](double base, int64_t step) {
    const auto next = std::upper_bound(milestones.begin(), milestones.end(), step);
    const auto i = static_cast<std::size_t>(next - milestones.begin());
    return schedules[i].rate(base, i == 0 ? step : step - milestones[i - 1]);
  }};
}

Schedule warm_up(int64_t steps, Schedule then, double start_factor) {
  return sequential({linear_lr(start_factor, 1, steps), std::move(then)}, {steps});
}

}  // namespace lockstep::optim
