// SPDX-License-Identifier: Apache-2.0
// CUDA passes with torch's device, stream and allocator.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "optim/cuda_kernels.h"

namespace lockstep::optim {
namespace {

/// Calls `fn(stream)` with the device's current stream, and throws if a launch failed.
template <class Fn>
void launch_on(int device, Fn&& fn) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  fn(c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

at::Tensor scratch_on(int device, std::int64_t doubles) {
  const at::Device here(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  return at::empty({doubles}, at::TensorOptions(here).dtype(at::kDouble));
}

int multiprocessors(int device) {
  int count = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
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
    const int size = multiprocessors(device);
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
