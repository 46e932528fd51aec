// SPDX-License-Identifier: Apache-2.0
// Launches of the CUDA kernels: what lies between C++ that knows torch and CUDA sources that do not.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::nn {

/// T is float or double throughout.
template <class T>
struct MessageArguments {
  const T* mean;
  const T* var;
  T* message;  // 2 * channels + 2
  std::int64_t channels;
  T high, low;  // the count's digits
};

template <class T>
struct MergeArguments {
  const T* messages;  // ranks rows of 2 * channels + 2
  int ranks;
  std::int64_t channels;
  double digit;
  double eps;
  // Written: channels each, and ranks counts.
  T* mean;
  T* var;
  T* invstd;
  std::int32_t* counts;
  // May be null, all three.
  T* running_mean;
  T* running_var;
  std::int64_t* batches;
  double momentum;
  bool cumulative;  // instead of momentum
  bool skip_non_finite;
};

template <class T>
void launch_message(const MessageArguments<T>& arguments, cudaStream_t stream);
template <class T>
void launch_merge(const MergeArguments<T>& arguments, cudaStream_t stream);

}  // namespace lockstep::nn
