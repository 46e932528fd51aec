// SPDX-License-Identifier: Apache-2.0
#include "step/late_flag.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::step {

void LateFlag::send(const at::Tensor& flag) {
  sent_ = true;
  if (!flag.defined() || flag.is_cpu()) {
    value_ = flag.defined() && flag.item<float>() != 0;
    return;
  }
  if (!copied_) {
    host_copy_ = at::zeros({1}, flag.options().device(at::kCPU).pinned_memory(true));
    copied_.emplace(flag.device().type());
  }
  host_copy_.copy_(flag.reshape({1}), /*non_blocking=*/true);
  copied_->record(c10::impl::VirtualGuardImpl(flag.device().type()).getStream(flag.device()));
}

bool LateFlag::take() {
  if (copied_) {
    copied_->synchronize();
    value_ = host_copy_.item<float>() != 0;
  }
  sent_ = false;
  return value_;
}

}  // namespace lockstep::step
