// SPDX-License-Identifier: Apache-2.0
// Learning rates as pure functions of the number of optimizer steps taken. Values equal those of the Python classes of
// the same names in torch.optim.lr_scheduler, at the same step.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "lockstep/export.h"

namespace lockstep::optim {

/// A learning rate, and where it cycles a momentum, as pure functions.
struct Schedule {
  /// Rate after `step` optimizer steps (0: for the first) of a group whose own rate is `base`.
  std::function<double(double base, std::int64_t step)> rate;
  /// The same for SGD's momentum or Adam's beta1. Empty: left alone.
  std::function<double(std::int64_t step)> momentum = {};
};

// Every function below throws InputError if an argument is out of range.

/// base * gamma^(step / step_size), whole periods only.
LOCKSTEP_API Schedule step_lr(std::int64_t step_size, double gamma = 0.1);
/// base * gamma^(number of milestones reached). `milestones` rise; a repeated one counts twice.
LOCKSTEP_API Schedule multi_step_lr(std::vector<std::int64_t> milestones, double gamma = 0.1);
/// base * gamma^step.
LOCKSTEP_API Schedule exponential_lr(double gamma);
/// base * factor until `total_iters`, then base.
LOCKSTEP_API Schedule constant_lr(double factor = 1.0 / 3, std::int64_t total_iters = 5);
/// base times a factor that goes from `start_factor` to `end_factor` in `total_iters` steps.
LOCKSTEP_API Schedule linear_lr(double start_factor = 1.0 / 3, double end_factor = 1, std::int64_t total_iters = 5);
/// base * (1 - step / total_iters)^power, 0 from `total_iters` on.
LOCKSTEP_API Schedule polynomial_lr(std::int64_t total_iters = 5, double power = 1);
/// Half a cosine from base to `eta_min` in `t_max` steps, and back again. https://arxiv.org/abs/1608.03983
LOCKSTEP_API Schedule cosine_annealing_lr(std::int64_t t_max, double eta_min = 0);
/// The half cosine anew after `t_0` steps, then after `t_0 * t_mult`, and so on. https://arxiv.org/abs/1608.03983
LOCKSTEP_API Schedule cosine_annealing_warm_restarts(std::int64_t t_0, std::int64_t t_mult = 1, double eta_min = 0);
/// base * factor(step).
LOCKSTEP_API Schedule lambda_lr(std::function<double(std::int64_t step)> factor);

struct OneCycleOptions {
  double max_lr = 0;              // highest rate, whatever a group's own rate is
  std::int64_t total_steps = 0;   // length of the cycle; later steps keep the last value
  double pct_start = 0.3;         // part of the cycle in which the rate rises
  bool cosine = true;             // false: straight lines
  bool cycle_momentum = true;     // momentum goes the other way
  double base_momentum = 0.85;    // at the highest rate
  double max_momentum = 0.95;     // at the lowest
  double div_factor = 25;         // max_lr over the first rate
  double final_div_factor = 1e4;  // first rate over the last
  bool three_phase = false;       // fall as long as the rise took, then from the first rate to the last
};
/// https://arxiv.org/abs/1708.07120
LOCKSTEP_API Schedule one_cycle_lr(const OneCycleOptions& options);

/// Each schedule takes the rate that the one before it gives as its base: for schedules that multiply, the product.
LOCKSTEP_API Schedule chained(std::vector<Schedule> schedules);
/// schedules[i] rules from milestones[i - 1] to milestones[i], and counts its steps from there.
LOCKSTEP_API Schedule sequential(std::vector<Schedule> schedules, std::vector<std::int64_t> milestones);
/// A straight line from `start_factor` * base to base in `steps` steps, then `then`, which counts from there.
LOCKSTEP_API Schedule warm_up(std::int64_t steps, Schedule then, double start_factor = 1.0 / 3);

/// Applies schedules to an optimizer's groups. Any torch::optim::Optimizer, which must outlive it.
class LOCKSTEP_API LrScheduler {
 public:
  /// One schedule for all groups. The groups' present rates are their base rates; the rates for step 0 are set at once.
  LrScheduler(torch::optim::Optimizer& optimizer, Schedule schedule);
  /// One schedule for each group. Throws InputError if their number differs.
  LrScheduler(torch::optim::Optimizer& optimizer, std::vector<Schedule> schedules);

  /// An optimizer step was taken. Do not call it after a step that was skipped.
  void step();
  /// Sets the rates for any number of steps taken, backwards too.
  void step_to(std::int64_t steps);

  std::int64_t steps() const { return steps_; }
  /// Present rate of each group.
  std::vector<double> learning_rates() const;

  /// Step count and base rates. The schedules are code: build the scheduler as it was, then load.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  const Schedule& schedule_of(std::size_t group) const;

  torch::optim::Optimizer& optimizer_;
  std::vector<Schedule> schedules_;
  std::vector<double> base_rates_;
  std::int64_t steps_ = 0;
};

struct PlateauOptions {
  bool maximize = false;            // the metric is better when higher
  double factor = 0.1;              // multiplies the rates, < 1
  std::int64_t patience = 10;       // steps without progress that are borne
  double threshold = 1e-4;          // how much counts as progress
  bool relative_threshold = true;   // `threshold` as a part of the best metric; false: as a difference
  std::int64_t cooldown = 0;        // steps after a cut in which nothing is counted
  std::vector<double> min_lr = {};  // lower bound, one for each group or one for all; empty: 0
  double eps = 1e-8;                // smaller cuts are not made
};

/// Cuts the rates when a metric stops improving. The metric must be the same on all ranks: reduce it first.
class LOCKSTEP_API ReduceLrOnPlateau {
 public:
  explicit ReduceLrOnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  void step(double metric);

  double best() const { return best_; }
  std::int64_t bad_steps() const { return bad_steps_; }

  /// All but the options, and the groups' present rates.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  bool better(double metric) const;
  void cut();

  torch::optim::Optimizer& optimizer_;
  PlateauOptions options_;
  double best_;
  std::int64_t bad_steps_ = 0;
  std::int64_t cooling_ = 0;
};

/// So that torch::save and torch::load take a scheduler.
template <class Scheduler>
concept SavedScheduler = std::same_as<Scheduler, LrScheduler> || std::same_as<Scheduler, ReduceLrOnPlateau>;

template <SavedScheduler Scheduler>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const Scheduler& scheduler) {
  scheduler.save(archive);
  return archive;
}

template <SavedScheduler Scheduler>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, Scheduler& scheduler) {
  scheduler.load(archive);
  return archive;
}

}  // namespace lockstep::optim
