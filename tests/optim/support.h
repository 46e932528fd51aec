// SPDX-License-Identifier: Apache-2.0
// Parameters, gradients and comparisons that the optimizers' tests share.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace lockstep::test {

using Tensors = std::vector<at::Tensor>;

/// Small, odd, empty, scalar, channels-last, transposed, and one longer than a thread's share.
inline Tensors make_parameters(at::ScalarType dtype, std::uint64_t seed, at::Device device = at::kCPU) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator).to(device, dtype); };
  Tensors parameters{random({64}),        random({3, 5}),
                     random({}),          random({0}),
                     random({2, 0, 3}),   random({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast),
                     random({33, 7}).t(), random({20011})};
  for (auto& parameter : parameters) {
    parameter.requires_grad_();
  }
  return parameters;
}

/// Copies with the same strides, each a leaf of its own.
inline Tensors clone(const Tensors& tensors) {
  Tensors copies;
  for (const auto& tensor : tensors) {
    copies.push_back(tensor.detach().clone().requires_grad_(tensor.requires_grad()));
  }
  return copies;
}

/// Gradients of `step`, times `scale`, the same for every call with the same numbers.
inline Tensors make_gradients(const Tensors& parameters, int step, double scale = 1) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 + static_cast<std::uint64_t>(step));
  Tensors gradients;
  for (const auto& parameter : parameters) {
    auto gradient = at::empty_like(parameter, at::TensorOptions().requires_grad(false));
    gradient.copy_(at::randn(parameter.sizes(), generator) * scale);
    gradients.push_back(gradient);
  }
  return gradients;
}

inline void set_gradients(const Tensors& parameters, const Tensors& gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = gradients[i];
  }
}

/// Parameters that have these gradients.
inline Tensors with_gradients(const Tensors& gradients) {
  Tensors parameters;
  for (const auto& gradient : gradients) {
    parameters.push_back(at::empty_like(gradient).requires_grad_());
    parameters.back().mutable_grad() = gradient;
  }
  return parameters;
}

/// Same dtype, shape and bits.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) {
    return false;
  }
  const auto x = a.detach().cpu().contiguous();
  const auto y = b.detach().cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

inline void expect_same_bits(const Tensors& a, const Tensors& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(same_bits(a[i], b[i])) << what << ": tensor " << i << " differs by "
                                       << (a[i].numel() > 0 ? (a[i] - b[i]).abs().max().item<double>() : 0.0);
  }
}

/// |a - b| <= tolerance * max(1, |b|), element by element; NaN nowhere.
inline void expect_close(const Tensors& a, const Tensors& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].numel() == 0) {
      continue;
    }
    const auto y = b[i].detach().to(at::kCPU, at::kDouble);
    const auto error = (a[i].detach().to(at::kCPU, at::kDouble) - y).abs() / y.abs().clamp_min(1);
    const auto largest = error.max().item<double>();
    EXPECT_TRUE(largest <= tolerance) << what << ": tensor " << i << " differs by " << largest;
  }
}

/// Eight elements.
inline at::Tensor parameter_of(double value, at::ScalarType dtype) {
  return at::full({8}, value, dtype).requires_grad_();
}

inline void set_gradient(const at::Tensor& parameter, double value) {
  parameter.mutable_grad() = at::full_like(parameter, value, at::TensorOptions().requires_grad(false));
}

inline at::Tensor one(double value, at::Device device = at::kCPU) {
  return at::full({1}, value, at::TensorOptions(device).dtype(at::kFloat));
}

inline Tensors detached(const Tensors& tensors) {
  Tensors out;
  for (const auto& tensor : tensors) {
    out.push_back(tensor.detach());
  }
  return out;
}

}  // namespace lockstep::test
