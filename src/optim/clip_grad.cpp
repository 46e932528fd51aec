// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/clip_grad.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <unordered_set>

#include "core/check.h"
#include "core/moved.h"
#include "core/runs.h"
#include "optim/norm.h"
#include "optim/plan.h"
#include "optim/storage.h"

namespace lockstep::optim {
namespace {

constexpr auto kClip = "optim.clip_grad";

Norm norm_of(double type) {
  core::check(type == 1 || type == 2 || type == INFINITY, kClip, [&] {
    return core::Problem{"no such norm", core::str(type), "1, 2 or infinity"};
  });
  return type == 1 ? Norm::one : type == 2 ? Norm::two : Norm::inf;
}

/// The gradients there are, each once. Of a sparse one, its values.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& parameter : parameters) {
    const auto& grad = parameter.grad();
    if (!grad.defined() || !seen.insert(grad.unsafeGetTensorImpl()).second) {
      continue;
    }
    core::check(kind_of(grad.scalar_type()) != Kind::none && (grad.is_cpu() || grad.is_cuda()), kClip, [&] {
      return core::Problem{"cannot clip this gradient", core::str(grad.scalar_type(), " on ", grad.device()),
                           "fp64, fp32, fp16 or bf16 on CPU or CUDA"};
    });
    gradients.push_back(grad);
  }
  return gradients;
}

/// What a norm reads: dense values, of a sparse gradient with its repeated indices summed.
at::Tensor values_to_read(const at::Tensor& gradient) {
  const auto values = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
  return is_dense(values) ? values : values.contiguous();
}

/// Gradients of one device as spans. `reads` keeps the tensors behind them.
struct DeviceGrads {
  c10::Device device;
  std::vector<at::Tensor> reads;
  std::vector<GradSpan> spans;
};

std::vector<GradSpan> spans_of(const std::vector<at::Tensor>& tensors) {
  std::vector<GradSpan> spans;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    std::vector<core::Piece> pieces;
    for (const auto& tensor : tensors) {
      if (tensor.scalar_type() == dtype) {
        pieces.push_back({.at = {reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr())}, .count = tensor.numel()});
      }
    }
    const auto width = static_cast<std::uint8_t>(c10::elementSize(dtype));
    for (const auto& run : core::join(std::move(pieces), {width}, kClip)) {
      spans.push_back({kind_of(dtype), reinterpret_cast<void*>(run.at[0]), run.count});
    }
  }
  return spans;
}

std::vector<DeviceGrads> by_device(const std::vector<at::Tensor>& tensors) {
  std::vector<DeviceGrads> all;
  for (const auto& tensor : tensors) {
    auto found = std::find_if(all.begin(), all.end(), [&](const auto& d) { return d.device == tensor.device(); });
    if (found == all.end()) {
      found = all.insert(all.end(), DeviceGrads{tensor.device(), {}, {}});
    }
    found->reads.push_back(tensor);
  }
  for (auto& device : all) {
    device.spans = spans_of(device.reads);
  }
  return all;
}

at::TensorOptions on(c10::Device device, at::ScalarType dtype) {
  return at::TensorOptions(device).dtype(dtype);
}

/// A result's tensors, and their addresses.
struct Settling {
  Norm norm;
  at::Tensor scale;
  ClipResult result;
  ClipTarget target;

  Settling(c10::Device device, Norm type, double max_norm, const at::Tensor& grad_scale)
      : norm(type), scale(grad_scale.defined() ? grad_scale.to(device) : grad_scale) {
    const auto one = [&] { return at::empty({1}, on(device, at::kFloat)); };
    result = {one(), one(), one()};
    target = {max_norm, scale.defined() ? scale.const_data_ptr<float>() : nullptr,
              result.norm.mutable_data_ptr<float>(), result.factor.mutable_data_ptr<float>(),
              result.found_inf.mutable_data_ptr<float>()};
  }
};

/// Powers of one device's gradients; on CUDA they settle at once unless `settling` is null.
at::Tensor power_on(const DeviceGrads& grads, Norm norm, const Settling* settling) {
  auto power = at::empty({1}, on(grads.device, at::kDouble));
  if (grads.device.is_cpu()) {
    *power.mutable_data_ptr<double>() = power_on_cpu(grads.spans, norm);
  } else {
    power_on_cuda(grads.device.index(), grads.spans, norm, power.mutable_data_ptr<double>(),
                  settling != nullptr ? &settling->target : nullptr);
  }
  return power;
}

at::Tensor joined_power(const std::vector<DeviceGrads>& grads, Norm norm) {
  if (grads.empty()) {
    return at::zeros({1}, on(at::kCPU, at::kDouble));
  }
  auto power = power_on(grads[0], norm, nullptr);
  for (std::size_t i = 1; i < grads.size(); ++i) {
    const auto other = core::moved(power_on(grads[i], norm, nullptr), power.device());
    power = norm == Norm::inf ? at::maximum(power, other) : power + other;
  }
  return power;
}

void settle(const at::Tensor& power, const Settling& settling) {
  if (power.is_cpu()) {
    return settle_clip(*power.const_data_ptr<double>(), settling.norm, settling.target);
  }
  settle_on_cuda(power.device().index(), power.const_data_ptr<double>(), settling.norm, settling.target);
}

ClipResult settled(const std::vector<DeviceGrads>& grads, double max_norm, const ClipOptions& options) {
  const Settling settling(grads.empty() ? c10::Device(at::kCPU) : grads[0].device, norm_of(options.norm_type), max_norm,
                          options.grad_scale);
  if (grads.size() == 1 && grads[0].device.is_cuda() && !options.reduce) {
    power_on(grads[0], settling.norm, &settling);
    return settling.result;
  }
  auto power = joined_power(grads, settling.norm);
  if (options.reduce) {
    options.reduce(power);
  }
  settle(power, settling);
  return settling.result;
}

void check_finite(const ClipResult& result, double norm_type) {
  const auto norm = result.norm.item<float>();
  if (!std::isfinite(norm)) {
    throw Error(core::message(kClip, {core::str("the gradients' norm of type ", norm_type, " is not finite"),
                                      core::str(norm),
                                      {},
                                      "skip this step, or look for the loss that overflowed"}));
  }
}

void scale(const DeviceGrads& grads, const at::Tensor& factor) {
  const auto here = core::moved(factor, grads.device);
  if (grads.device.is_cpu()) {
    return scale_on_cpu(grads.spans, here.const_data_ptr<float>());
  }
  scale_on_cuda(grads.device.index(), grads.spans, here.const_data_ptr<float>());
}

}  // namespace

ClipResult clip_factor(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options) {
  const at::NoGradGuard no_grad;
  norm_of(options.norm_type);
  core::check(max_norm >= 0, kClip, [&] { return core::Problem{"max_norm below zero", core::str(max_norm), ">= 0"}; });
  check_inputs({.grad_scale = options.grad_scale});
  auto reads = gradients_of(parameters);
  std::transform(reads.begin(), reads.end(), reads.begin(), values_to_read);
  auto result = settled(by_device(reads), max_norm, options);
  if (options.error_if_nonfinite) {
    check_finite(result, options.norm_type);
  }
  return result;
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options) {
  const auto result = clip_factor(parameters, max_norm, options);
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  std::vector<at::Tensor> dense;
  for (const auto& gradient : gradients) {
    const auto values = gradient.is_sparse() ? gradient._values() : gradient;
    if (is_dense(values)) {
      dense.push_back(values);
    } else {
      const auto wide = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      values.copy_(values.to(wide) * result.factor.to(values.device(), wide));
    }
  }
  for (const auto& device : by_device(dense)) {
    scale(device, result.factor);
  }
  for (const auto& gradient : gradients) {
    gradient.unsafeGetTensorImpl()->bump_version();
  }
  return result.norm;
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  const at::NoGradGuard no_grad;
  core::check(clip_value >= 0, kClip, [&] {
    return core::Problem{"clip_value below zero", core::str(clip_value), ">= 0"};
  });
  for (auto& gradient : gradients_of(parameters)) {
    auto values = gradient.is_sparse() ? gradient._values() : gradient;
    values.clamp_(-clip_value, clip_value);
  }
}

}  // namespace lockstep::optim
