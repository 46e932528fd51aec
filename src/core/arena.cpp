// SPDX-License-Identifier: Apache-2.0
#include "core/arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

namespace lockstep::core {
namespace {

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (auto i = sizes.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

}  // namespace

bool is_dense(const TensorSpec& spec) {
  std::vector<std::size_t> order(spec.sizes.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return spec.strides[a] < spec.strides[b]; });
  std::int64_t expected = 1;
  for (const auto d : order) {
    if (spec.sizes[d] == 1) {
      continue;
    }
    if (spec.strides[d] != expected) {
      return spec.numel() < 2;
    }
    expected *= spec.sizes[d];
  }
  return true;
}

Arena::Arena(const Layout& layout, const std::vector<TensorSpec>& specs, std::optional<at::ScalarType> dtype) {
  for (const auto& group : layout.groups) {
    flat_.push_back(
        at::zeros({group.numel}, at::TensorOptions().dtype(dtype.value_or(group.dtype)).device(group.device)));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    aliases_.push_back(make_alias(layout.slots[i], specs[i]));
  }
}

at::Tensor Arena::make_alias(const Slot& slot, const TensorSpec& spec) const {
  const c10::NoGradGuard no_grad;
  const auto& flat = flat_[static_cast<std::size_t>(slot.group)];
  auto alias = at::empty({0}, flat.options());
  alias.set_(flat.storage(), slot.offset, spec.sizes, is_dense(spec) ? spec.strides : row_major(spec.sizes));
  return alias;
}

void Arena::detach_holder(int index) {
  const c10::NoGradGuard no_grad;
  auto& held = aliases_[static_cast<std::size_t>(index)];
  auto fresh = at::empty({0}, held.options());
  fresh.set_(held.storage(), held.storage_offset(), held.sizes(), held.strides());
  held.set_(held.clone());
  held = fresh;
}

at::Tensor Arena::slice(int group, std::int64_t begin, std::int64_t end) const {
  return flat_[static_cast<std::size_t>(group)].narrow(0, begin, end - begin);
}

}  // namespace lockstep::core
