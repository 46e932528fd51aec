// SPDX-License-Identifier: Apache-2.0
// A flag on the device, read by the host when it no longer has to wait for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace lockstep::step {

class LateFlag {
 public:
  /// Sends one fp32 element (undefined: 0) to the host, in the order of the current stream.
  void send(const at::Tensor& flag);
  bool sent() const { return sent_; }
  /// Waits until it is there. True for anything but 0; the flag counts as read then.
  bool take();

 private:
  bool sent_ = false;
  bool value_ = false;
  at::Tensor host_copy_;
  std::optional<c10::Event> copied_;
};

}  // namespace lockstep::step
