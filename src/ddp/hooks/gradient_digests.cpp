// SPDX-License-Identifier: Apache-2.0
#include "ddp/hooks/gradient_digests.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "core/digest.h"
#include "core/moved.h"

namespace lockstep::ddp {
namespace {

/// Odd, so that no earlier difference is ever multiplied away.
constexpr auto kStep = static_cast<std::int64_t>(core::kKeyStep);

void append(const at::Tensor& running, const GradientBucket& bucket) {
  const c10::NoGradGuard no_grad;
  const auto next = core::moved(core::digests_of({bucket.buffer}), running.device());
  running.narrow(0, bucket.index, 1).mul_(kStep).add_(next);
}

}  // namespace

GradientDigests::GradientDigests(std::int64_t buckets, c10::Device device)
    : own_(at::zeros({buckets}, at::TensorOptions(device).dtype(at::kLong))), reduced_(at::zeros_like(own_)) {}

CommHook GradientDigests::around(CommHook hook) {
  return [self = shared_from_this(), hook = std::move(hook)](const GradientBucket& bucket) -> std::function<void()> {
    append(self->own_, bucket);
    auto finish = hook(bucket);
    if (!finish) {
      return finish;
    }
    return [self, bucket, finish = std::move(finish)] {
      finish();
      append(self->reduced_, bucket);
    };
  };
}

}  // namespace lockstep::ddp
