// SPDX-License-Identifier: Apache-2.0
// The kernels with torch's tensors, device and stream.
#include "nn/on_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "core/on_cuda.h"
#include "nn/cuda_kernels.h"

namespace lockstep::nn {
namespace {

using core::launch_on;

template <class T>
void write_message(const Moments& moments, std::int64_t count, const at::Tensor& message) {
  const MessageArguments<T> arguments{moments.mean.const_data_ptr<T>(), moments.var.const_data_ptr<T>(),
                                      message.mutable_data_ptr<T>(),    moments.mean.numel(),
                                      static_cast<T>(count / kDigit),   static_cast<T>(count % kDigit)};
  launch_on(message.get_device(), [&](cudaStream_t stream) { launch_message(arguments, stream); });
}

template <class T>
void write_merged(const at::Tensor& messages, double eps, const Running& running, const SharedStatistics& result) {
  const bool tracks = running.mean.defined();
  const MergeArguments<T> arguments{messages.const_data_ptr<T>(),
                                    static_cast<int>(messages.size(0)),
                                    messages.size(1) / 2 - 1,
                                    static_cast<double>(kDigit),
                                    eps,
                                    result.moments.mean.mutable_data_ptr<T>(),
                                    result.moments.var.mutable_data_ptr<T>(),
                                    result.invstd.mutable_data_ptr<T>(),
                                    result.counts.mutable_data_ptr<std::int32_t>(),
                                    tracks ? running.mean.mutable_data_ptr<T>() : nullptr,
                                    tracks ? running.var.mutable_data_ptr<T>() : nullptr,
                                    tracks ? running.batches.mutable_data_ptr<std::int64_t>() : nullptr,
                                    running.momentum.value_or(0),
                                    !running.momentum.has_value(),
                                    running.skip_non_finite};
  launch_on(messages.get_device(), [&](cudaStream_t stream) { launch_merge(arguments, stream); });
}

// Kernels write behind autograd's back: it is told.
void mark_written(const Running& running) {
  for (const auto& tensor : {running.mean, running.var, running.batches}) {
    if (tensor.defined() && !tensor.is_inference()) {
      tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace

at::Tensor message_on_cuda(const Moments& moments, std::int64_t count) {
  const auto message = at::empty({2 * moments.mean.numel() + 2}, moments.mean.options());
  const bool wide = message.scalar_type() == at::kDouble;
  (wide ? write_message<double> : write_message<float>)(moments, count, message);
  return message;
}

SharedStatistics merge_on_cuda(const at::Tensor& messages, double eps, const Running& running) {
  const auto mean = at::empty({messages.size(1) / 2 - 1}, messages.options());
  const SharedStatistics result{{mean, at::empty_like(mean)},
                                at::empty_like(mean),
                                at::empty({messages.size(0)}, messages.options().dtype(at::kInt))};
  const bool wide = messages.scalar_type() == at::kDouble;
  (wide ? write_merged<double> : write_merged<float>)(messages, eps, running, result);
  mark_written(running);
  return result;
}

}  // namespace lockstep::nn
