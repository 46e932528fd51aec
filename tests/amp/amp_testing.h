// SPDX-License-Identifier: Apache-2.0
// What the tests of mixed precision share.
#pragma once

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/optim/scaled_step.h"

namespace lockstep::amp::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The text of the InputError that `fn` throws.
inline std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

inline bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The dtype that a matrix product of fp32 tensors has here and now.
inline at::ScalarType matmul_dtype() {
  return at::ones({2, 2}).matmul(at::ones({2, 2})).scalar_type();
}

/// A parameter of one element whose loss is `gradient * parameter`.
inline at::Tensor one_parameter(float value = 1) {
  return at::full({1}, value).requires_grad_();
}

/// SGD that unscales and skips on the device, written as plainly as possible.
class DeviceSgd : public torch::optim::SGD, public optim::ScaledOptimizer {
 public:
  using SGD::SGD;
  int calls = 0;

  void step_scaled(const at::Tensor& grad_scale, const at::Tensor& found_inf) override {
    const at::NoGradGuard no_grad;
    ++calls;
    for (auto& group : param_groups()) {
      for (auto& parameter : group.params()) {
        if (!parameter.grad().defined()) {
          continue;
        }
        auto gradient = parameter.grad().to(at::kFloat);
        if (grad_scale.defined()) {
          gradient = gradient / grad_scale;
        }
        const auto updated = parameter - group.options().get_lr() * gradient;
        const bool skip = found_inf.defined() && found_inf.item<float>() != 0;
        parameter.copy_(skip ? parameter : updated);
      }
    }
  }
};

}  // namespace lockstep::amp::testing
