// SPDX-License-Identifier: Apache-2.0
#include "amp/scaler_checks.h"

#include <cmath>
#include <set>

#include "core/check.h"

namespace lockstep::amp {
namespace {

using core::check;
using core::Problem;
using core::str;

constexpr const char* kOptions = "amp.GradScaler";
constexpr const char* kScalerLoad = "amp.GradScaler.load_state_dict";

template <class T>
void require(bool ok, const char* name, T got, const char* expected) {
  check(ok, kOptions, [&] { return Problem{str(name, " is out of range"), str(got), expected}; });
}

void check_keys(const std::map<std::string, double>& state) {
  const std::set<std::string> required{"scale", "growth_factor", "backoff_factor", "growth_interval",
                                       "_growth_tracker"};
  const std::set<std::string> optional{"_hysteresis_tracker", "_skips_in_a_row"};
  check(!state.empty(), kScalerLoad, [] {
    return Problem{.what = "the state is empty",
                   .advice = "it was possibly saved from a disabled GradScaler; skip load_state_dict to start afresh"};
  });
  for (const auto& key : required) {
    check(state.count(key) != 0, kScalerLoad, [&] { return Problem{str("the state lacks the key ", key)}; });
  }
  for (const auto& [key, value] : state) {
    check(required.count(key) + optional.count(key) != 0, kScalerLoad,
          [&] { return Problem{str("the state has an unknown key, ", key)}; });
    check(std::isfinite(value), kScalerLoad, [&] { return Problem{str(key, " is not finite"), str(value)}; });
  }
}

std::int64_t whole(const std::map<std::string, double>& state, const char* key, std::int64_t otherwise) {
  const auto found = state.find(key);
  return found == state.end() ? otherwise : static_cast<std::int64_t>(found->second);
}

}  // namespace

void check_options(const GradScalerOptions& o) {
  require(o.growth_factor > 1 && std::isfinite(o.growth_factor), "growth_factor", o.growth_factor, "above 1");
  require(o.backoff_factor > 0 && o.backoff_factor < 1, "backoff_factor", o.backoff_factor, "between 0 and 1");
  require(o.growth_interval >= 1 && o.growth_interval <= INT32_MAX, "growth_interval", o.growth_interval,
          "at least 1, at most 2^31 - 1");
  require(o.hysteresis >= 1 && o.hysteresis < (1 << 24), "hysteresis", o.hysteresis, "at least 1, below 2^24");
  require(o.min_scale >= 0x1p-126, "min_scale", o.min_scale, "at least 2^-126, so that the scale stays normal");
  require(o.max_scale >= o.min_scale && o.max_scale <= 0x1p126, "max_scale", o.max_scale,
          "at least min_scale and at most 2^126, so that its inverse stays normal");
  require(o.max_skips_in_a_row >= 0, "max_skips_in_a_row", o.max_skips_in_a_row, "0 (never) or more");
  check_scale(o.init_scale, o, kOptions);
}

void check_scale(double scale, const GradScalerOptions& options, const char* where) {
  check(scale >= options.min_scale && scale <= options.max_scale, where, [&] {
    return Problem{"the scale is out of range", str(scale),
                   str("a number in [", options.min_scale, ", ", options.max_scale, "] (min_scale, max_scale)")};
  });
}

void check_scale_tensor(const at::Tensor& scale, c10::Device device, const char* where) {
  check(scale.defined() && scale.numel() == 1 && scale.scalar_type() == at::kFloat && scale.device() == device &&
            !scale.requires_grad(),
        where, [&] {
          return Problem{"the new scale does not fit", scale.defined() ? scale.toString() : "an undefined tensor",
                         str("one fp32 element on ", device, " without requires_grad")};
        });
}

LoadedState check_state(const std::map<std::string, double>& state, const GradScalerOptions& options) {
  check_keys(state);
  LoadedState loaded{options, {}};
  loaded.options.growth_factor = state.at("growth_factor");
  loaded.options.backoff_factor = state.at("backoff_factor");
  loaded.options.growth_interval = whole(state, "growth_interval", 0);
  check_options(loaded.options);
  loaded.values.scale = state.at("scale");
  check_scale(loaded.values.scale, options, kScalerLoad);
  loaded.values.growth_tracker = whole(state, "_growth_tracker", 0);
  loaded.values.hysteresis_tracker = whole(state, "_hysteresis_tracker", options.hysteresis);
  loaded.values.skips = whole(state, "_skips_in_a_row", 0);
  check(loaded.values.growth_tracker >= 0 && loaded.values.growth_tracker < loaded.options.growth_interval, kScalerLoad,
        [&] {
          return Problem{"_growth_tracker is out of range", str(loaded.values.growth_tracker),
                         str("0 to ", loaded.options.growth_interval - 1)};
        });
  return loaded;
}

}  // namespace lockstep::amp
