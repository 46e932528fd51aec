// SPDX-License-Identifier: Apache-2.0
// The law by which a loss scale moves, written once for the CPU and CUDA: plain numbers and addresses, no torch type.
#pragma once

#include <cstdint>

#include "core/both.h"

namespace lockstep::amp {

struct ScaleLaw {
  double growth_factor;
  double backoff_factor;
  std::int64_t growth_interval;
  std::int64_t hysteresis;
  double min_scale;
  double max_scale;
  bool dynamic;
};

/// Where a scale and its counters live: one element each, on one device.
struct ScaleCells {
  float* scale;
  std::int32_t* growth_tracker;
  float* hysteresis_tracker;  // overflows left before the scale falls
  float* skips;               // overflows in a row
};

/// The scale after an overflow. With hysteresis, each one spends a token, and the scale falls when none is left.
LOCKSTEP_BOTH float lowered(const ScaleCells& cells, float scale, const ScaleLaw& law) {
  *cells.growth_tracker = 0;
  const bool tokens_left = law.hysteresis > 1 && --*cells.hysteresis_tracker > 0;
  return tokens_left ? scale : static_cast<float>(scale * law.backoff_factor);
}

/// The scale after a clean update. A growth that would reach infinity is left out.
LOCKSTEP_BOTH float raised(const ScaleCells& cells, float scale, const ScaleLaw& law) {
  if (law.hysteresis > 1) {
    *cells.hysteresis_tracker = static_cast<float>(law.hysteresis);
  }
  if (++*cells.growth_tracker != law.growth_interval) {
    return scale;
  }
  *cells.growth_tracker = 0;
  const auto grown = static_cast<float>(scale * law.growth_factor);
  return grown - grown == 0 ? grown : scale;
}

/// One update. The roundings are those of PyTorch's GradScaler: products in fp64, then fp32.
LOCKSTEP_BOTH void move_scale(const ScaleCells& cells, float found_inf, const ScaleLaw& law) {
  const bool found = found_inf != 0;
  *cells.skips = found ? *cells.skips + 1 : 0;
  if (!law.dynamic) {
    return;
  }
  const auto scale = found ? lowered(cells, *cells.scale, law) : raised(cells, *cells.scale, law);
  const auto least = static_cast<float>(law.min_scale);
  const auto most = static_cast<float>(law.max_scale);
  *cells.scale = scale < least ? least : scale > most ? most : scale;
}

/// The same on a CUDA device, in the order of its current stream, without waiting.
void move_scale_on_cuda(int device, const ScaleCells& cells, const float* found_inf, const ScaleLaw& law);

}  // namespace lockstep::amp
