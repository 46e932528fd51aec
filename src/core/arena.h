// SPDX-License-Identifier: Apache-2.0
// Flat storage for one value (a gradient, a master, a moment) of every tensor of a model, by a Layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/layout.h"

namespace lockstep::core {

class Arena {
 public:
  /// Allocates zeros for every group; `dtype` overrides the groups' own (masters in fp32).
  Arena(const Layout& layout, const std::vector<TensorSpec>& specs, std::optional<at::ScalarType> dtype = std::nullopt);

  /// The tensor's place as an alias with the tensor's sizes and, where it is dense, its strides. It is no autograd
  /// view: `detach_()` and LibTorch's `zero_grad` work on it, and it has a version counter of its own.
  const at::Tensor& alias(int index) const { return aliases_[static_cast<std::size_t>(index)]; }

  /// Gives the holder of alias `index` a copy of its own and makes a new alias in its place.
  void detach_holder(int index);

  /// Elements [begin, end) of a group, one-dimensional, padding included.
  at::Tensor slice(int group, std::int64_t begin, std::int64_t end) const;

  const std::vector<at::Tensor>& groups() const { return flat_; }

 private:
  at::Tensor make_alias(const Slot& slot, const TensorSpec& spec) const;

  std::vector<at::Tensor> flat_;
  std::vector<at::Tensor> aliases_;
};

/// True if elements do not overlap and leave no gap, in whatever order.
bool is_dense(const TensorSpec& spec);

}  // namespace lockstep::core
