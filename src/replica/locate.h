// SPDX-License-Identifier: Apache-2.0
// Finds the first element in which ranks' tensors differ, without sending the tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "replica/entry.h"

namespace lockstep::replica {

struct Element {
  std::vector<std::int64_t> index;
  std::vector<std::string> values;  // one a rank
};

/// Collective, for tensors of equal dtype and sizes on all ranks. Nothing where they are equal. Each round exchanges
/// the digests of 256 parts and goes on with the first part that differs; the last few KiB are exchanged themselves.
std::optional<Element> first_differing_element(const World& world, const at::Tensor& tensor);

/// `value` (one element) in decimal, exact enough to be read back, and its bits: `0.25 (0x3e800000)`.
std::string value_text(const at::Tensor& value);

/// Row-major place of element number `flat`.
std::vector<std::int64_t> unravel(std::int64_t flat, at::IntArrayRef sizes);

/// Row `rank` of the result is `mine` of that rank. One-dimensional, on any device; the result is on the CPU.
at::Tensor gathered(const World& world, const at::Tensor& mine, const std::string& name);

}  // namespace lockstep::replica
