// SPDX-License-Identifier: Apache-2.0
// One block each: there are a few thousand channels at most, and whether the batch is taken into the running statistics
// depends on all of them.
#include "nn/cuda_kernels.h"

namespace lockstep::nn {
namespace {

constexpr int kThreads = 512;

template <class T>
__global__ void __launch_bounds__(kThreads) message_kernel(MessageArguments<T> a) {
  for (std::int64_t c = threadIdx.x; c < a.channels; c += kThreads) {
    a.message[c] = a.mean[c];
    a.message[a.channels + c] = a.var[c];
  }
  if (threadIdx.x == 0) {
    a.message[2 * a.channels] = a.high;
    a.message[2 * a.channels + 1] = a.low;
  }
}

template <class T>
struct Rows {
  const MergeArguments<T>& a;

  __device__ const T* row(int rank) const { return a.messages + rank * (2 * a.channels + 2); }
  __device__ double count(int rank) const {
    return row(rank)[2 * a.channels] * a.digit + row(rank)[2 * a.channels + 1];
  }
  __device__ double total() const {
    double sum = 0;
    for (int r = 0; r < a.ranks; ++r) {
      sum += count(r);
    }
    return sum;
  }
  __device__ double mean(std::int64_t channel, double total) const {
    double sum = 0;
    for (int r = 0; r < a.ranks; ++r) {
      sum += count(r) * row(r)[channel];
    }
    return sum / total;
  }
  __device__ double spread(std::int64_t channel, double mean) const {
    double sum = 0;
    for (int r = 0; r < a.ranks; ++r) {
      const double apart = row(r)[channel] - mean;
      sum += count(r) * (row(r)[a.channels + channel] + apart * apart);
    }
    return sum;
  }
};

template <class T>
__device__ T blended(T kept, double value, double factor) {
  return static_cast<T>(kept * (1 - factor) + value * factor);
}

template <class T>
__device__ void take(const MergeArguments<T>& a, const Rows<T>& rows, double total, double factor) {
  for (std::int64_t c = threadIdx.x; c < a.channels; c += kThreads) {
    const double mean = rows.mean(c, total);
    a.running_mean[c] = blended(a.running_mean[c], mean, factor);
    a.running_var[c] = blended(a.running_var[c], rows.spread(c, mean) / (total - 1), factor);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) merge_kernel(MergeArguments<T> a) {
  const Rows<T> rows{a};
  const double total = rows.total();
  bool finite = true;
  for (std::int64_t c = threadIdx.x; c < a.channels; c += kThreads) {
    const double mean = rows.mean(c, total);
    const double var = rows.spread(c, mean) / total;
    a.mean[c] = static_cast<T>(mean);
    a.var[c] = static_cast<T>(var);
    a.invstd[c] = static_cast<T>(1 / sqrt(var + a.eps));
    finite = finite && isfinite(a.mean[c]) && isfinite(a.var[c]);
  }
  for (int r = threadIdx.x; r < a.ranks; r += kThreads) {
    a.counts[r] = static_cast<std::int32_t>(rows.count(r));
  }
  const bool all_finite = __syncthreads_and(finite);
  if (a.running_mean == nullptr || total < 2 || (a.skip_non_finite && !all_finite)) {
    return;
  }
  const double factor = a.cumulative ? 1.0 / static_cast<double>(*a.batches + 1) : a.momentum;
  take(a, rows, total, factor);
  __syncthreads();  // all have read the counter
  if (threadIdx.x == 0) {
    *a.batches += 1;
  }
}

}  // namespace

template <class T>
void launch_message(const MessageArguments<T>& arguments, cudaStream_t stream) {
  message_kernel<<<1, kThreads, 0, stream>>>(arguments);
}

template <class T>
void launch_merge(const MergeArguments<T>& arguments, cudaStream_t stream) {
  merge_kernel<<<1, kThreads, 0, stream>>>(arguments);
}

template void launch_message(const MessageArguments<float>&, cudaStream_t);
template void launch_message(const MessageArguments<double>&, cudaStream_t);
template void launch_merge(const MergeArguments<float>&, cudaStream_t);
template void launch_merge(const MergeArguments<double>&, cudaStream_t);

}  // namespace lockstep::nn
