// SPDX-License-Identifier: Apache-2.0
#include "amp/loss_scaler.h"

#include <ATen/ATen.h>

#include "amp/low_precision.h"
#include "core/check.h"
#include "core/moved.h"

namespace lockstep::amp {
namespace {

const GradScalerOptions& checked(const GradScalerOptions& options) {
  check_options(options);
  return options;
}

}  // namespace

LossScaler::LossScaler(const GradScalerOptions& options)
    : options_(checked(options)),
      state_({options.init_scale, 0, options.hysteresis, 0}),
      watch_(options.max_skips_in_a_row) {}

at::Tensor LossScaler::scale(const at::Tensor& output) {
  if (!state_.placed()) {
    state_.place(output.device());
  }
  const auto scale = core::moved(state_.scale(), output.device());
  return (low_precision(output) ? output.to(at::kFloat) : output) * scale;
}

void LossScaler::note(const at::Tensor& found_inf) {
  found_inf_ = found_inf_.defined() ? at::maximum(found_inf_, found_inf) : found_inf;
}

void LossScaler::update(const char* where) {
  state_.advance(found_inf_, {options_.growth_factor, options_.backoff_factor, options_.growth_interval,
                              options_.hysteresis, options_.min_scale, options_.max_scale, options_.dynamic});
  found_inf_.reset();
  check_skips(where);
}

void LossScaler::check_skips(const char* where) {
  if (watch_.reached_limit(state_.skips())) {
    fail_for_skips(where);
  }
}

void LossScaler::fail_for_skips(const char* where) {
  auto values = state_.values();
  const auto seen = std::exchange(values.skips, 0);
  state_.set(values);
  throw Error(core::message(
      where, {"inf or NaN in every one of the last updates, no step was taken", core::str(seen, " in a row"),
              core::str("fewer than ", options_.max_skips_in_a_row, " (max_skips_in_a_row)"),
              core::str("the scale is ", values.scale,
                        ": NaN in the data, the loss or the model is likelier than overflow")}));
}

void LossScaler::set_scale(const at::Tensor& scale) {
  state_.set_scale(scale);
  found_inf_.reset();
}

std::map<std::string, double> LossScaler::state_dict() const {
  const auto values = state_.values();
  return {{"scale", values.scale},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", static_cast<double>(options_.growth_interval)},
          {"_growth_tracker", static_cast<double>(values.growth_tracker)},
          {"_hysteresis_tracker", static_cast<double>(values.hysteresis_tracker)},
          {"_skips_in_a_row", static_cast<double>(values.skips)}};
}

void LossScaler::load_state_dict(const std::map<std::string, double>& state) {
  const auto loaded = check_state(state, options_);
  options_ = loaded.options;
  state_.set(loaded.values);
}

}  // namespace lockstep::amp
