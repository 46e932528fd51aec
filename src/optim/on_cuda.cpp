// SPDX-License-Identifier: Apache-2.0
// CUDA passes with torch's device, stream and allocator.
#include <ATen/ops/empty.h>

#include <utility>

#include "core/on_cuda.h"
#include "optim/cuda_kernels.h"

namespace lockstep::optim {
namespace {

template <class Launch>
void launch_on(int device, Launch&& launch) {
  core::launch_on(static_cast<c10::DeviceIndex>(device), std::forward<Launch>(launch));
}

at::Tensor scratch_on(int device, std::int64_t doubles) {
  const at::Device here(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  return at::empty({doubles}, at::TensorOptions(here).dtype(at::kDouble));
}

}  // namespace

void run_on_cuda(int device, const std::vector<Tick>& ticks, const std::vector<Pass>& passes) {
  launch_on(device, [&](cudaStream_t stream) {
    launch_ticks(ticks, stream);
    for (const auto& pass : passes) {
      if (pass.update == Update::lamb) {
        launch_lamb(pass, scratch_on(device, lamb_scratch(pass)).mutable_data_ptr<double>(), stream);
      } else {
        launch_pass(pass, stream);
      }
    }
  });
}

void power_on_cuda(int device, const std::vector<GradSpan>& spans, Norm norm, double* power, const ClipTarget* target) {
  launch_on(device, [&](cudaStream_t stream) {
    const int size = core::multiprocessors(static_cast<c10::DeviceIndex>(device));
    const auto parts = scratch_on(device, power_parts(spans, size));
    launch_power(spans, norm, size, parts.mutable_data_ptr<double>(), power, target, stream);
  });
}

void settle_on_cuda(int device, const double* power, Norm norm, const ClipTarget& target) {
  launch_on(device, [&](cudaStream_t stream) { launch_settle(power, norm, target, stream); });
}

void scale_on_cuda(int device, const std::vector<GradSpan>& spans, const float* factor) {
  launch_on(device, [&](cudaStream_t stream) { launch_scale(spans, factor, stream); });
}

}  // namespace lockstep::optim
