// SPDX-License-Identifier: Apache-2.0
// What a GradScaler refuses: options, scales and saved states out of range.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <string>

#include "amp/scale_state.h"
#include "lockstep/amp/grad_scaler.h"

namespace lockstep::amp {

void check_options(const GradScalerOptions& options);
void check_scale(double scale, const GradScalerOptions& options, const char* where);
void check_scale_tensor(const at::Tensor& scale, c10::Device device, const char* where);

struct LoadedState {
  GradScalerOptions options;
  ScaleValues values;
};

/// `options` with the state's factors, and the state's values.
LoadedState check_state(const std::map<std::string, double>& state, const GradScalerOptions& options);

}  // namespace lockstep::amp
