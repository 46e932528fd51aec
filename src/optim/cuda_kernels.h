// SPDX-License-Identifier: Apache-2.0
// Launches of the CUDA kernels: what lies between C++ that knows torch and CUDA sources that do not.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "optim/norm.h"
#include "optim/pass.h"

namespace lockstep::optim {

void launch_ticks(const std::vector<Tick>& ticks, cudaStream_t stream);
void launch_pass(const Pass& pass, cudaStream_t stream);

/// Doubles that launch_lamb needs as scratch.
std::int64_t lamb_scratch(const Pass& pass);
void launch_lamb(const Pass& pass, double* scratch, cudaStream_t stream);

/// Doubles that launch_power needs as scratch.
std::int64_t power_parts(const std::vector<GradSpan>& spans, int multiprocessors);
void launch_power(const std::vector<GradSpan>& spans, Norm norm, int multiprocessors, double* parts, double* power,
                  const ClipTarget* target, cudaStream_t stream);
void launch_settle(const double* power, Norm norm, const ClipTarget& target, cudaStream_t stream);
void launch_scale(const std::vector<GradSpan>& spans, const float* factor, cudaStream_t stream);

}  // namespace lockstep::optim
