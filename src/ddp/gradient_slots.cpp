// SPDX-License-Identifier: Apache-2.0
#include "ddp/gradient_slots.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/mul.h>

#include "core/check.h"
#include "ddp/model_tensors.h"

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

GradientSlots::GradientSlots(const std::vector<NamedTensor>& parameters, const core::BucketLimits& limits, double scale)
    : parameters_(parameters),
      specs_(gradient_specs(parameters)),
      layout_(core::plan_layout(specs_, limits)),
      arena_(layout_, specs_),
      scale_(wrapped_number(scale)),
      taken_(parameters.size(), false) {}

void GradientSlots::begin() {
  taken_.assign(taken_.size(), false);
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

void GradientSlots::write(int index, const at::Tensor& grad) {
  if (!grad.is_same(arena_.alias(index)) && arena_.alias(index).use_count() > 1) {
    arena_.detach_holder(index);  // somebody kept the last step's gradient; let them keep its values
  }
  auto alias = arena_.alias(index);
  if (grad.is_sparse()) {
    alias.zero_();
    alias.add_(grad.mul(scale_));
  } else {
    at::mul_out(alias, grad, scale_);
  }
}

bool GradientSlots::take(int index) {
  const c10::NoGradGuard no_grad;
  auto& grad = parameter(index).mutable_grad();
  const bool first = !taken_[static_cast<std::size_t>(index)];
  taken_[static_cast<std::size_t>(index)] = true;
  if (!grad.defined()) {
    if (first) {
      arena_.alias(index).zero_();
    }
    return false;
  }
  check_gradient(index, grad);
  if (first) {
    write(index, grad);
  } else {
    arena_.alias(index).add_(grad.mul(scale_));
  }
  grad = at::Tensor();
  return true;
}

void GradientSlots::publish(int index) {
  parameter(index).mutable_grad() = arena_.alias(index);
}

at::Tensor GradientSlots::bucket(int index) const {
  const auto& bucket = layout_.buckets[static_cast<std::size_t>(index)];
  return arena_.slice(bucket.group, bucket.begin, bucket.end);
}

}  // namespace lockstep::ddp
