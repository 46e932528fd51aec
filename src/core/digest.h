// SPDX-License-Identifier: Apache-2.0
// A 64-bit fingerprint of raw bits that depends on every byte and on its place. Equal digests of two replicas mean, for
// all practical purposes, equal bits; it is no defence against an adversary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/mix.h"

namespace lockstep::core {

std::uint64_t digest_bytes(std::span<const std::byte> bytes);

/// Digests of tensors that lie on one device, one int64 element each, on that device and in the order of its current
/// stream: nothing waits for the device, and a CUDA graph may capture it. Elements are taken in logical (row-major)
/// order, whatever the strides; dtype and sizes are not part of a digest. One linear pass over contiguous tensors;
/// others are made contiguous on their device first, some 64 MiB at a time.
at::Tensor digests_of(const std::vector<at::Tensor>& tensors);

/// The digest of one tensor on the host. Waits for the device.
std::uint64_t digest(const at::Tensor& tensor);

/// Sixteen hexadecimal digits.
std::string digest_text(std::uint64_t digest);

}  // namespace lockstep::core
