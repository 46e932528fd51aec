// SPDX-License-Identifier: Apache-2.0
// Small values on their way between devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::core {

/// `tensor` on `device`, without a wait for either, except that a copy to the host is whole when this returns: nothing
/// else would keep the host from reading it before the device has written it.
inline at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace lockstep::core
