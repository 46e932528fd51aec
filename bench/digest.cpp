// SPDX-License-Identifier: Apache-2.0
// How fast memory is hashed: the digest beside a plain read of the same tensor by ATen (a sum), in turns in one run.
//
//   bench_digest            256 MiB on the CPU; 4 GiB, and a model of 148 tensors, on CUDA where there is a device
#include <ATen/ATen.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "core/digest.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRepeats = 11;
constexpr int kCallsInARow = 10;  // so that a device works while the host prepares the next, as in training

void wait_for(const at::Tensor& tensor) {
  if (tensor.is_cuda()) {
    torch::cuda::synchronize();
  }
}

double median_seconds(const at::Tensor& device, const std::function<void()>& work) {
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    wait_for(device);
    const auto begin = Clock::now();
    for (int i = 0; i < kCallsInARow; ++i) {
      work();
    }
    wait_for(device);
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / kCallsInARow);
  }
  std::sort(times.begin(), times.end());
  return times[kRepeats / 2];
}

void report(const char* name, const std::vector<at::Tensor>& tensors) {
  double bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += static_cast<double>(tensor.nbytes());
  }
  const auto hash = median_seconds(tensors[0], [&] { lockstep::core::digests_of(tensors); });
  const auto read = median_seconds(tensors[0], [&] {
    for (const auto& tensor : tensors) {
      at::sum(tensor);
    }
  });
  std::printf("%-28s %8.1f MiB  digest %8.1f us %8.1f GB/s  at::sum %8.1f us %8.1f GB/s\n", name, bytes / 1048576,
              hash * 1e6, bytes / hash * 1e-9, read * 1e6, bytes / read * 1e-9);
}

/// GPT-2's 148 parameters (124 million), `copies` times: masters and moments have the same sizes.
std::vector<at::Tensor> gpt2(c10::Device device, at::ScalarType dtype, int copies) {
  const auto options = at::TensorOptions(device).dtype(dtype);
  std::vector<at::Tensor> tensors;
  for (int copy = 0; copy < copies; ++copy) {
    for (const std::int64_t size : {50257 * 768, 1024 * 768, 768, 768}) {
      tensors.push_back(at::ones({size}, options));
    }
    for (int layer = 0; layer < 12; ++layer) {
      for (const std::int64_t size :
           {768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768, 768}) {
        tensors.push_back(at::ones({size}, options));
      }
    }
  }
  return tensors;
}

}  // namespace

int main() {
  report("CPU, one tensor", {at::ones({1 << 26})});
  if (torch::cuda::is_available()) {
    const c10::Device cuda(c10::kCUDA, 0);
    report("CUDA, one tensor", {at::ones({1 << 30}, cuda)});
    report("CUDA, GPT-2 bf16", gpt2(cuda, at::kBFloat16, 1));
    report("CUDA, GPT-2 fp32 x 3", gpt2(cuda, at::kFloat, 3));
  }
}
