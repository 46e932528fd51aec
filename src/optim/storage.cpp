// SPDX-License-Identifier: Apache-2.0
#include "optim/storage.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <tuple>

namespace lockstep::optim {
namespace {

constexpr std::int64_t kAlign = 64;  // elements; keeps vector loads aligned and cache lines apart

std::uintptr_t begin_of(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
}

std::uintptr_t end_of(const at::Tensor& tensor) {
  return begin_of(tensor) + tensor.nbytes();
}

auto pool_of(const Wanted& w) {
  const auto device = w.like->device();
  return std::tuple(device.type(), device.index(), w.dtype, w.lane);
}

std::vector<std::int64_t> strides_like(const at::Tensor& tensor) {
  if (is_dense(tensor)) {
    return tensor.strides().vec();
  }
  const auto strides = c10::contiguous_strides(tensor.sizes());
  return {strides.begin(), strides.end()};
}

/// Offset of each tensor, in elements, and the total behind them.
std::vector<std::int64_t> offsets_of(const Wanted* first, const Wanted* last) {
  std::vector<std::int64_t> offsets;
  std::int64_t end = 0;
  for (const auto* w = first; w != last; ++w) {
    const bool adjacent = w != first && end_of(*w[-1].like) == begin_of(*w->like);
    const auto offset = adjacent ? end : (end + kAlign - 1) / kAlign * kAlign;
    offsets.push_back(offset);
    end = offset + w->like->numel();
  }
  offsets.push_back(end);
  return offsets;
}

void make_pool(const Wanted* first, const Wanted* last) {
  const auto offsets = offsets_of(first, last);
  const auto options = first->like->options().dtype(first->dtype).requires_grad(false);
  const auto flat = at::zeros({offsets.back()}, options);
  for (const auto* w = first; w != last; ++w) {
    auto* place = static_cast<char*>(flat.mutable_data_ptr()) +
                  offsets[static_cast<std::size_t>(w - first)] * static_cast<std::int64_t>(flat.element_size());
    auto made = at::from_blob(
        place, w->like->sizes(), strides_like(*w->like), [flat](void*) {}, options, w->like->device());
    if (w->initial.defined()) {
      made.copy_(w->initial);
    }
    *w->into = std::move(made);
  }
}

}  // namespace

bool is_dense(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
}

bool same_walk(const at::Tensor& a, const at::Tensor& b) {
  return (a.is_contiguous() && b.is_contiguous()) || (is_dense(a) && is_dense(b) && a.strides() == b.strides());
}

void make_adjacent(std::vector<Wanted> wanted) {
  std::stable_sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) {
    return std::tuple(pool_of(a), begin_of(*a.like)) < std::tuple(pool_of(b), begin_of(*b.like));
  });
  const auto* const end = wanted.data() + wanted.size();
  for (const auto* first = wanted.data(); first != end;) {
    const auto* last = std::find_if(first, end, [&](const Wanted& w) { return pool_of(w) != pool_of(*first); });
    make_pool(first, last);
    first = last;
  }
}

const at::Tensor& Staging::read(const at::Tensor& tensor, const at::Tensor& model) {
  if (same_walk(tensor, model)) {
    return tensor;
  }
  copies_.push_back(at::empty_strided(model.sizes(), strides_like(model), tensor.options().requires_grad(false)));
  return copies_.back().copy_(tensor);
}

const at::Tensor& Staging::write(const at::Tensor& tensor, const at::Tensor& model) {
  const auto& dense = read(tensor, model);
  if (&dense != &tensor) {
    written_.emplace_back(tensor, &dense);
  }
  return dense;
}

void Staging::write_back() {
  for (auto& [tensor, dense] : written_) {
    tensor.copy_(*dense);
  }
}

}  // namespace lockstep::optim
