// SPDX-License-Identifier: Apache-2.0
#include "core/digest.h"

#include <ATen/ops/resolve_conj.h>
#include <ATen/ops/resolve_neg.h>
#include <ATen/ops/zeros.h>

#include <cstdio>

#include "core/check.h"
#include "core/digest_pass.h"

namespace lockstep::core {
namespace {

constexpr std::int64_t kStagedBytes = 64 << 20;

/// Spans of one device, and the copies that some of them point into.
class Batch {
 public:
  explicit Batch(const at::Tensor& sums) : sums_(sums) {}

  void add(const at::Tensor& tensor, std::int64_t sum) {
    const bool plain = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    spans_.push_back({(plain ? tensor : staged(tensor, bytes)).const_data_ptr(), bytes, sum});
    if (staged_ >= kStagedBytes) {
      run();
    }
  }

  void run() {
    auto* sums = static_cast<std::uint64_t*>(sums_.mutable_data_ptr());
    if (sums_.is_cuda()) {
      add_digests_on_cuda(sums_.get_device(), spans_, sums);
    } else {
      add_digests_on_cpu(spans_, sums);
    }
    spans_.clear();
    copies_.clear();
    staged_ = 0;
  }

 private:
  const at::Tensor& staged(const at::Tensor& tensor, std::int64_t bytes) {
    staged_ += bytes;
    return copies_.emplace_back(tensor.detach().resolve_conj().resolve_neg().contiguous());
  }

  at::Tensor sums_;
  std::vector<DigestSpan> spans_;
  std::vector<at::Tensor> copies_;
  std::int64_t staged_ = 0;
};

void check_device(const at::Tensor& tensor, c10::Device device) {
  check(tensor.device() == device && tensor.layout() == at::kStrided && (device.is_cpu() || device.is_cuda()),
        "core.digest", [&] {
          return Problem{"a tensor cannot be hashed", str(tensor.layout(), " on ", tensor.device()),
                         str("strided tensors on ", device, ", CPU or CUDA")};
        });
}

}  // namespace

std::uint64_t digest_bytes(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  add_digests_on_cpu({{bytes.data(), static_cast<std::int64_t>(bytes.size()), 0}}, &sum);
  return sum;
}

at::Tensor digests_of(const std::vector<at::Tensor>& tensors) {
  const auto device = tensors.empty() ? c10::Device(c10::kCPU) : tensors[0].device();
  const auto count = static_cast<std::int64_t>(tensors.size());
  const auto sums = at::zeros({count}, at::TensorOptions(device).dtype(at::kLong));
  Batch batch(sums);
  for (std::int64_t i = 0; i < count; ++i) {
    check_device(tensors[static_cast<std::size_t>(i)], device);
    batch.add(tensors[static_cast<std::size_t>(i)], i);
  }
  batch.run();
  return sums;
}

std::uint64_t digest(const at::Tensor& tensor) {
  return static_cast<std::uint64_t>(digests_of({tensor}).item<std::int64_t>());
}

std::string digest_text(std::uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
  return text;
}

}  // namespace lockstep::core
