// SPDX-License-Identifier: Apache-2.0
#include "amp/gradients.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <map>

#include "amp/low_precision.h"
#include "core/check.h"
#include "core/moved.h"

namespace lockstep::amp {
namespace {

using DeviceAndDtype = std::pair<c10::DeviceIndex, at::ScalarType>;

std::map<DeviceAndDtype, std::vector<at::Tensor>> grouped(const std::vector<at::Tensor>& gradients) {
  std::map<DeviceAndDtype, std::vector<at::Tensor>> groups;
  for (const auto& gradient : gradients) {
    groups[{gradient.device().index(), gradient.scalar_type()}].push_back(gradient.is_sparse() ? gradient._values()
                                                                                               : gradient);
  }
  return groups;
}

}  // namespace

std::vector<at::Tensor> gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) {
        continue;
      }
      if (gradient.is_sparse() && low_precision(gradient)) {
        gradient = gradient.coalesce();
      }
      gradients.push_back(gradient);
    }
  }
  return gradients;
}

void refuse_fp16(const std::vector<at::Tensor>& gradients, const char* where) {
  for (const auto& gradient : gradients) {
    core::check(gradient.scalar_type() != at::kHalf, where, [&] {
      return core::Problem{"attempting to unscale FP16 gradients", core::str("one of shape ", gradient.sizes()),
                           "fp32 gradients",
                           "keep parameters in fp32 (autocast casts them), or use fp32 masters (OptLevel::O2)"};
    });
  }
}

at::Tensor unscale_and_check(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  auto found_anywhere = at::zeros_like(factor);
  for (auto& [key, list] : grouped(gradients)) {
    const auto device = list.front().device();
    if (device == factor.device()) {
      at::_amp_foreach_non_finite_check_and_unscale_(list, found_anywhere, factor);
      continue;
    }
    auto found = at::zeros_like(factor, factor.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(list, found, core::moved(factor, device));
    found_anywhere = at::maximum(found_anywhere, core::moved(found, factor.device()));
  }
  return found_anywhere;
}

GradientVersions versions_of(const std::vector<at::Tensor>& gradients) {
  GradientVersions versions;
  versions.reserve(gradients.size());
  for (const auto& gradient : gradients) {
    versions.emplace_back(gradient.unsafeGetTensorImpl(), gradient.is_inference() ? 0 : gradient._version());
  }
  return versions;
}

}  // namespace lockstep::amp
