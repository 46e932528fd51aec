// SPDX-License-Identifier: Apache-2.0
// Schedules at work on an optimizer's groups.
#include <ATen/ops/tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "lockstep/optim/lr_schedule.h"

namespace lockstep::optim {
namespace {

using torch::optim::Optimizer;

template <class Options>
bool set_beta1(torch::optim::OptimizerOptions& any, double value) {
  auto* options = dynamic_cast<Options*>(&any);
  if (options != nullptr) {
    options->betas({value, std::get<1>(options->betas())});
  }
  return options != nullptr;
}

void set_momentum(torch::optim::OptimizerOptions& options, double value) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
    sgd->momentum(value);
    return;
  }
  const bool done =
      set_beta1<torch::optim::AdamOptions>(options, value) || set_beta1<torch::optim::AdamWOptions>(options, value);
  core::check(done, "optim.LrScheduler", [] {
    return core::Problem{.what = "the optimizer has no momentum to cycle",
                         .advice = "set OneCycleOptions::cycle_momentum to false"};
  });
}

std::vector<double> rates_of(const Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

void write(torch::serialize::OutputArchive& archive, const char* key, const std::vector<double>& values) {
  archive.write(key, at::tensor(values, at::kDouble));
}

std::vector<double> read(torch::serialize::InputArchive& archive, const char* key) {
  at::Tensor values;
  archive.read(key, values);
  const auto* first = values.const_data_ptr<double>();
  return {first, first + values.numel()};
}

void check_groups(std::size_t found, std::size_t wanted) {
  core::check(found == wanted, "optim.LrScheduler", [&] {
    return core::Problem{"one value is needed for each parameter group", core::str(found), core::str(wanted)};
  });
}

}  // namespace

LrScheduler::LrScheduler(Optimizer& optimizer, Schedule schedule)
    : LrScheduler(optimizer, std::vector{optimizer.param_groups().size(), std::move(schedule)}) {}

LrScheduler::LrScheduler(Optimizer& optimizer, std::vector<Schedule> schedules)
    : optimizer_(optimizer), schedules_(std::move(schedules)), base_rates_(rates_of(optimizer)) {
  check_groups(schedules_.size(), base_rates_.size());
  step_to(0);
}

void LrScheduler::step() {
  step_to(steps_ + 1);
}

void LrScheduler::step_to(std::int64_t steps) {
  steps_ = steps;
  for (std::size_t i = 0; i < optimizer_.param_groups().size(); ++i) {
    auto& options = optimizer_.param_groups()[i].options();
    if (i == base_rates_.size()) {
      base_rates_.push_back(options.get_lr());
    }
    const auto& schedule = schedule_of(i);
    options.set_lr(schedule.rate(base_rates_[i], steps_));
    if (schedule.momentum) {
      set_momentum(options, schedule.momentum(steps_));
    }
  }
}

const Schedule& LrScheduler::schedule_of(std::size_t group) const {
  return schedules_[std::min(group, schedules_.size() - 1)];
}

std::vector<double> LrScheduler::learning_rates() const {
  return rates_of(optimizer_);
}

void LrScheduler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("steps", c10::IValue(steps_));
  write(archive, "base_rates", base_rates_);
}

void LrScheduler::load(torch::serialize::InputArchive& archive) {
  auto base_rates = read(archive, "base_rates");
  check_groups(base_rates.size(), optimizer_.param_groups().size());
  c10::IValue steps;
  archive.read("steps", steps);
  base_rates_ = std::move(base_rates);
  step_to(steps.toInt());
}

ReduceLrOnPlateau::ReduceLrOnPlateau(Optimizer& optimizer, PlateauOptions options)
    : optimizer_(optimizer),
      options_(std::move(options)),
      best_(options_.maximize ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity()) {
  core::check(options_.factor < 1, "optim.ReduceLrOnPlateau", [&] {
    return core::Problem{"factor would not cut the rate", core::str(options_.factor), "< 1"};
  });
  if (options_.min_lr.size() > 1) {
    check_groups(options_.min_lr.size(), optimizer_.param_groups().size());
  }
}

bool ReduceLrOnPlateau::better(double metric) const {
  const double margin = options_.relative_threshold ? best_ * options_.threshold : options_.threshold;
  const double sign = options_.maximize ? 1 : -1;
  // A margin relative to an infinite best is no number: anything finite beats it.
  const double bar = std::isinf(best_) ? best_ : best_ + sign * margin;
  return options_.maximize ? metric > bar : metric < bar;
}

void ReduceLrOnPlateau::step(double metric) {
  ++bad_steps_;
  if (better(metric)) {
    best_ = metric;
    bad_steps_ = 0;
  }
  if (cooling_ > 0) {
    --cooling_;
    bad_steps_ = 0;
  }
  if (bad_steps_ > options_.patience) {
    cut();
    cooling_ = options_.cooldown;
    bad_steps_ = 0;
  }
}

void ReduceLrOnPlateau::cut() {
  const auto& bounds = options_.min_lr;
  for (std::size_t i = 0; i < optimizer_.param_groups().size(); ++i) {
    auto& options = optimizer_.param_groups()[i].options();
    const double bound = bounds.empty() ? 0 : bounds[std::min(i, bounds.size() - 1)];
    const double rate = std::max(options.get_lr() * options_.factor, bound);
    if (options.get_lr() - rate > options_.eps) {
      options.set_lr(rate);
    }
  }
}

void ReduceLrOnPlateau::save(torch::serialize::OutputArchive& archive) const {
  write(archive, "rates", rates_of(optimizer_));
  archive.write("best", c10::IValue(best_));
  archive.write("bad_steps", c10::IValue(bad_steps_));
  archive.write("cooling", c10::IValue(cooling_));
}

void ReduceLrOnPlateau::load(torch::serialize::InputArchive& archive) {
  const auto rates = read(archive, "rates");
  check_groups(rates.size(), optimizer_.param_groups().size());
  c10::IValue best, bad_steps, cooling;
  archive.read("best", best);
  archive.read("bad_steps", bad_steps);
  archive.read("cooling", cooling);
  best_ = best.toDouble();
  bad_steps_ = bad_steps.toInt();
  cooling_ = cooling.toInt();
  for (std::size_t i = 0; i < rates.size(); ++i) {
    optimizer_.param_groups()[i].options().set_lr(rates[i]);
  }
}

}  // namespace lockstep::optim
