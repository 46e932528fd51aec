// SPDX-License-Identifier: Apache-2.0
#include "amp/masters.h"

#include <ATen/ATen.h>

#include <map>

namespace lockstep::amp {
namespace {

constexpr std::int64_t kAlignment = 32;  // elements, so that slices of neighbours share no cache line

std::int64_t padded(std::int64_t numel) {
  return (numel + kAlignment - 1) / kAlignment * kAlignment;
}

// An alias made by set_ is no autograd view: it can be a leaf of its own.
at::Tensor slice(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  const bool dense = like.is_non_overlapping_and_dense();
  auto alias = at::empty({0}, flat.options());
  alias.set_(flat.storage(), offset, like.sizes(), dense ? like.strides() : at::empty_like(like).strides());
  return alias;
}

/// One flat tensor for all of `likes` (on one device), cut into slices.
std::vector<at::Tensor> flat_slices(const std::vector<at::Tensor>& likes) {
  std::int64_t total = 0;
  for (const auto& like : likes) {
    total += padded(like.numel());
  }
  const auto flat = at::zeros({total}, likes.front().options().dtype(at::kFloat).requires_grad(false));
  std::vector<at::Tensor> slices;
  std::int64_t offset = 0;
  for (const auto& like : likes) {
    slices.push_back(slice(flat, offset, like));
    offset += padded(like.numel());
  }
  return slices;
}

at::Tensor bits(const at::Tensor& t) {
  return t.view(at::kShort);
}

void refresh_one(const Master& m) {
  const auto rounded = m.master.to(m.parameter.scalar_type());
  if (m.parameter.is_cpu() && at::equal(bits(rounded), bits(m.parameter))) {
    return;
  }
  const auto foreign = bits(rounded).ne(bits(m.parameter));
  m.master.copy_(at::where(foreign, m.parameter.to(at::kFloat), m.master));
}

bool needs_buffer(const Master& m) {
  const auto gradient = m.parameter.grad();
  return !m.gradient.defined() && gradient.defined() && !gradient.is_sparse() && gradient.scalar_type() != at::kFloat;
}

void make_missing_buffers(const MasterList& masters) {
  std::vector<Master*> missing;
  std::vector<at::Tensor> likes;
  for (auto* m : masters) {
    if (needs_buffer(*m)) {
      missing.push_back(m);
      likes.push_back(m->master);
    }
  }
  const auto buffers = likes.empty() ? likes : flat_slices(likes);
  for (std::size_t i = 0; i < missing.size(); ++i) {
    missing[i]->gradient = buffers[i];
  }
}

}  // namespace

void Masters::build(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  const at::NoGradGuard no_grad;
  std::map<c10::DeviceIndex, std::vector<at::Tensor>> by_device;
  for (const auto& [name, parameter] : parameters) {
    by_device[parameter.device().index()].push_back(parameter);
  }
  std::map<c10::DeviceIndex, std::vector<at::Tensor>> slices;
  for (const auto& [device, likes] : by_device) {
    slices[device] = flat_slices(likes);
  }
  std::map<c10::DeviceIndex, std::size_t> next;
  for (const auto& [name, parameter] : parameters) {
    const auto device = parameter.device().index();
    insert(name, parameter, slices[device][next[device]++].copy_(parameter));
  }
}

Master& Masters::add(const std::string& name, const at::Tensor& parameter) {
  return insert(name, parameter, parameter.detach().to(at::kFloat));
}

Master& Masters::insert(const std::string& name, const at::Tensor& parameter, const at::Tensor& master) {
  all_.push_back(std::make_unique<Master>(Master{name, master.requires_grad_(), parameter, at::Tensor()}));
  by_parameter_[parameter.unsafeGetTensorImpl()] = all_.back().get();
  return *all_.back();
}

Master* Masters::find(const at::Tensor& parameter) {
  const auto found = by_parameter_.find(parameter.unsafeGetTensorImpl());
  return found == by_parameter_.end() ? nullptr : found->second;
}

void refresh(const MasterList& masters) {
  const at::NoGradGuard no_grad;
  for (const auto* m : masters) {
    refresh_one(*m);
  }
}

void derive(const MasterList& masters) {
  const at::NoGradGuard no_grad;
  for (const auto* m : masters) {
    m->master.copy_(m->parameter);
  }
}

void write_back(const MasterList& masters) {
  const at::NoGradGuard no_grad;
  for (const auto* m : masters) {
    m->parameter.detach().copy_(m->master);
  }
}

void make_gradients(const MasterList& masters) {
  const at::NoGradGuard no_grad;
  make_missing_buffers(masters);
  for (auto* m : masters) {
    auto& from = m->parameter.mutable_grad();
    auto& to = m->master.mutable_grad();
    if (!from.defined()) {
      to.reset();
    } else if (from.is_sparse()) {
      to = from.to(at::kFloat).coalesce();
    } else {
      to = from.scalar_type() == at::kFloat ? from.detach() : m->gradient.copy_(from);
    }
    from.reset();
  }
}

void lend_gradients(const MasterList& masters) {
  for (const auto* m : masters) {
    m->master.mutable_grad() = m->parameter.grad();
  }
}

}  // namespace lockstep::amp
