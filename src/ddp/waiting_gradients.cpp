// SPDX-License-Identifier: Apache-2.0
#include "ddp/waiting_gradients.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/mul.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace lockstep::ddp {
namespace {

constexpr std::size_t kFewest = 16;            // for fewer, one kernel that takes long over large tensors is no gain
constexpr std::int64_t kMostBytes = 32 << 20;  // of gradients kept alive beyond autograd's own need

c10::Stream current_stream(const at::Tensor& tensor) {
  return c10::impl::getDeviceGuardImpl(tensor.device().type())->getStream(tensor.device());
}

void order(const c10::Stream& before, const c10::Stream& after) {
  if (before != after) {
    c10::Event event(before.device_type());
    event.record(before);
    event.block(after);
  }
}

}  // namespace

bool WaitingGradients::can_wait(const at::Tensor& slot, const at::Tensor& gradient) const {
  return gradient.is_cuda() && !gradient.is_sparse() && !gradient.is_same(slot) &&
         gradient.strides() == slot.strides() && bytes_ < kMostBytes &&
         (!stream_ || *stream_ == current_stream(gradient));
}

bool WaitingGradients::hold(const at::Tensor& slot, const at::Tensor& gradient) {
  if (!can_wait(slot, gradient)) {
    return false;
  }
  stream_ = current_stream(gradient);
  slots_.push_back(slot);
  gradients_.push_back(gradient);
  bytes_ += static_cast<std::int64_t>(gradient.nbytes());
  return true;
}

void WaitingGradients::write(const at::Tensor& scale) {
  if (slots_.size() < kFewest) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      at::mul_out(slots_[i], gradients_[i], scale);
    }
    return;
  }
  at::_foreach_copy_(slots_, gradients_);
  if (const auto value = scale.item<double>(); value != 1) {
    at::_foreach_mul_(slots_, value);
  }
}

void WaitingGradients::deliver(const at::Tensor& scale) {
  if (!slots_.empty()) {
    const auto asking = current_stream(slots_.front());
    {
      const c10::StreamGuard guard(*stream_);
      write(scale);
    }
    order(*stream_, asking);  // at the end of backward autograd has joined its streams already, without these copies
  }
  forget();
}

void WaitingGradients::forget() {
  slots_.clear();
  gradients_.clear();
  bytes_ = 0;
  stream_.reset();
}

}  // namespace lockstep::ddp
