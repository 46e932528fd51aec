// SPDX-License-Identifier: Apache-2.0
#include "ddp/gradient_slots.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>

#include <sstream>

#include "core/check.h"
#include "ddp/model_tensors.h"
#include "ddp/shared_memory.h"
#include "ddp/small_copies.h"

namespace lockstep::ddp {
namespace {

/// A gradient usually has its parameter's dtype, unless the user chose another one for the leaf.
std::vector<core::TensorSpec> gradient_specs(const std::vector<NamedTensor>& parameters) {
  std::vector<core::TensorSpec> specs;
  for (const auto& parameter : parameters) {
    specs.push_back(spec_of(parameter));
    specs.back().dtype = parameter.tensor.grad_dtype().value_or(specs.back().dtype);
  }
  return specs;
}

at::Tensor wrapped_number(double value) {
  auto tensor = c10::scalar_to_tensor(value);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace

GradientSlots::GradientSlots(const std::vector<NamedTensor>& parameters, const core::BucketLimits& limits)
    : parameters_(parameters),
      specs_(gradient_specs(parameters)),
      layout_(core::plan_layout(specs_, limits)),
      scale_(wrapped_number(scale_value_)),
      taken_(parameters.size(), false),
      bucket_of_(parameters.size()),
      waiting_(layout_.buckets.size()) {
  for (std::size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
    for (const int tensor : layout_.buckets[bucket].tensors) {
      bucket_of_[static_cast<std::size_t>(tensor)] = static_cast<int>(bucket);
    }
  }
}

void GradientSlots::allocate() {
  if (!arena_) {
    arena_.emplace(layout_, specs_);
  }
}

void GradientSlots::begin(double scale) {
  taken_.assign(taken_.size(), false);
  if (scale != scale_value_) {
    scale_value_ = scale;
    scale_ = wrapped_number(scale);
  }
}

void GradientSlots::check_gradient(int index, const at::Tensor& grad) const {
  const auto& spec = specs_[static_cast<std::size_t>(index)];
  const bool same = grad.scalar_type() == spec.dtype && grad.device() == spec.device && grad.sizes() == spec.sizes;
  core::check(same, "ddp.backward", [&] {
    return core::Problem{core::str("the gradient of ", spec.name, " no longer fits the parameter that was wrapped"),
                         core::str(c10::toString(grad.scalar_type()), grad.sizes(), " on ", grad.device()),
                         core::str(c10::toString(spec.dtype), at::IntArrayRef(spec.sizes), " on ", spec.device),
                         "move and cast the model before wrapping it, or wrap it again"};
  });
}

/// Somebody may have kept the last step's gradient: let them keep its values.
void GradientSlots::let_holder_keep(int index, const at::Tensor& grad) {
  if (!grad.is_same(alias(index)) && alias(index).use_count() > 1) {
    arena_->detach_holder(index);
  }
}

void GradientSlots::deliver(int bucket) {
  const c10::NoGradGuard no_grad;
  waiting_[static_cast<std::size_t>(bucket)].deliver(scale_);
}

void GradientSlots::end() {
  for (auto& waiting : waiting_) {
    waiting.forget();
  }
}

void GradientSlots::write(int index, const at::Tensor& grad) {
  let_holder_keep(index, grad);
  auto slot = alias(index);
  if (waiting_[static_cast<std::size_t>(bucket_of_[static_cast<std::size_t>(index)])].hold(slot, grad) ||
      scale_if_small(slot, grad, scale_value_)) {
    return;
  }
  if (grad.is_sparse()) {
    slot.zero_();
    slot.add_(grad.mul(scale_));
  } else {
    at::mul_out(slot, grad, scale_);
  }
}

bool GradientSlots::take(int index) {
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowAutograd no_autograd;  // nothing here is recorded: spares a detour for each tensor
  auto& grad = parameter(index).mutable_grad();
  const bool first = !taken_[static_cast<std::size_t>(index)];
  taken_[static_cast<std::size_t>(index)] = true;
  if (!grad.defined()) {
    if (first && !in_place()) {
      let_holder_keep(index, grad);
      alias(index).zero_();
    }
    return false;
  }
  check_gradient(index, grad);
  if (in_place()) {
    grad = grad.is_sparse() ? grad.to_dense() : grad.requires_grad() ? grad.detach() : grad;  // as in larger worlds
    return true;
  }
  if (first) {
    write(index, grad);
  } else {
    deliver(bucket_of_[static_cast<std::size_t>(index)]);
    alias(index).add_(grad.mul(scale_));
  }
  grad = at::Tensor();
  return true;
}

void GradientSlots::publish(int index) {
  if (!in_place()) {
    parameter(index).mutable_grad() = alias(index);
  }
}

void GradientSlots::separate() {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor*> own;
  own.reserve(parameters_.size());
  for (int i = 0; i < size(); ++i) {
    auto& grad = parameter(i).mutable_grad();
    if (in_place() || !grad.is_same(alias(i))) {
      own.push_back(&grad);
    }
  }
  ddp::separate(own);
}

at::Tensor GradientSlots::bucket(int index) const {
  const auto& bucket = layout_.buckets[static_cast<std::size_t>(index)];
  return arena_->slice(bucket.group, bucket.begin, bucket.end);
}

std::uint64_t GradientSlots::bucket_bytes(int index) const {
  const auto& bucket = layout_.buckets[static_cast<std::size_t>(index)];
  const auto dtype = layout_.groups[static_cast<std::size_t>(bucket.group)].dtype;
  return static_cast<std::uint64_t>(bucket.end - bucket.begin) * c10::elementSize(dtype);
}

std::string GradientSlots::describe() const {
  std::ostringstream out;
  for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
    const auto& bucket = layout_.buckets[b];
    const auto& group = layout_.groups[static_cast<std::size_t>(bucket.group)];
    out << "bucket " << b << ": " << c10::toString(group.dtype) << " on " << group.device << ", "
        << bucket_bytes(static_cast<int>(b)) << " bytes:";
    for (const int tensor : bucket.tensors) {
      out << ' ' << name(tensor);
    }
    out << '\n';
  }
  return out.str();
}

}  // namespace lockstep::ddp
