// SPDX-License-Identifier: Apache-2.0
#include "amp/skip_watch.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/capturing.h"

namespace lockstep::amp {
namespace {

constexpr std::int64_t kCallsBetweenLooks = 32;

}  // namespace

bool SkipWatch::reached_limit(const at::Tensor& skips) {
  if (limit_ == 0) {
    return false;
  }
  if (skips.is_cpu()) {
    return skips.item<std::int64_t>() >= limit_;
  }
  if (core::capturing()) {
    return false;
  }
  return ++calls_ % kCallsBetweenLooks == 0 && read_late(skips) >= limit_;
}

std::int64_t SkipWatch::read_late(const at::Tensor& skips) {
  std::int64_t seen = 0;
  if (copied_) {
    copied_->synchronize();  // recorded 32 updates ago: over by now
    seen = host_copy_.item<std::int64_t>();
  } else {
    host_copy_ = at::zeros({}, skips.options().device(at::kCPU).pinned_memory(true));
    copied_.emplace(skips.device().type());
  }
  host_copy_.copy_(skips, /*non_blocking=*/true);
  copied_->record(c10::impl::VirtualGuardImpl(skips.device().type()).getStream(skips.device()));
  return seen;
}

}  // namespace lockstep::amp
