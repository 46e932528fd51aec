// SPDX-License-Identifier: Apache-2.0
// A joined batch, its parts, and torch's BatchNorm on the whole of it in double: what several ranks must reproduce.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <numeric>
#include <string>
#include <vector>

#include "core/check.h"
#include "lockstep/nn/batch_norm.h"
#include "support/models.h"
#include "support/ranks.h"

namespace lockstep::test {

using Sizes = std::vector<std::int64_t>;

/// What is allowed between a rank's numbers and the reference: rounding of the dtype to values below 4, and of fp32
/// statistics.
struct Tolerance {
  double relative, absolute;
};

inline Tolerance tolerance_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return {1e-9, 1e-9};
    case at::kHalf:
      return {1e-3, 2e-3};
    case at::kBFloat16:
      return {8e-3, 1.6e-2};
    default:
      return {2e-5, 2e-5};
  }
}

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance,
                         const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const auto a = actual.detach().cpu().to(at::kDouble), b = expected.detach().cpu().to(at::kDouble);
  EXPECT_TRUE(at::allclose(a, b, tolerance.relative, tolerance.absolute))
      << what << " differs by " << (a.numel() > 0 ? (a - b).abs().max().item<double>() : 0.0);
}

struct Batch {
  at::Tensor input;     ///< joined
  at::Tensor gradient;  ///< of the joined output
  Sizes parts;          ///< rows of each rank

  at::Tensor part_of(const at::Tensor& joined, int rank) const {
    const auto begin = std::accumulate(parts.begin(), parts.begin() + rank, std::int64_t{0});
    return joined.narrow(0, begin, parts[static_cast<std::size_t>(rank)]);
  }
};

/// Offset and spread differ by channel, so that a mixed-up channel shows.
inline Batch make_batch(std::int64_t channels, const Sizes& parts, const Sizes& rest, at::ScalarType dtype,
                        std::uint64_t seed) {
  Sizes shape{std::accumulate(parts.begin(), parts.end(), std::int64_t{0}), channels};
  shape.insert(shape.end(), rest.begin(), rest.end());
  Sizes by_channel(shape.size(), 1);
  by_channel[1] = channels;
  const auto offset = random({channels}, seed + 1).view(by_channel);
  const auto spread = random({channels}, seed + 2).abs().add(0.5).view(by_channel);
  return {(random(shape, seed) * spread + offset).to(dtype), random(shape, seed + 3).to(dtype), parts};
}

struct Results {
  at::Tensor output, input_grad, weight_grad, bias_grad, running_mean, running_var, batches;
};

template <class Module>
void set_affine(Module& module, std::uint64_t seed) {
  if (module.weight.defined()) {
    const at::NoGradGuard no_grad;
    module.weight.copy_(random({module.weight.numel()}, seed + 4).abs().add(0.5));
    module.bias.copy_(random({module.bias.numel()}, seed + 5));
  }
}

template <class Module>
Results results_of(Module& module, const at::Tensor& input, const at::Tensor& gradient) {
  const auto leaf = input.detach().requires_grad_();
  const auto output = module.forward(leaf);
  output.backward(gradient);
  const auto grad = [](const at::Tensor& t) { return t.defined() ? t.grad() : t; };
  return {output,
          leaf.grad(),
          grad(module.weight),
          grad(module.bias),
          module.running_mean,
          module.running_var,
          module.num_batches_tracked};
}

template <class Module>
Results reference_with(const torch::nn::BatchNormOptions& options, const Batch& batch, std::uint64_t seed) {
  Module module(options);
  module->to(at::kDouble);
  set_affine(*module, seed);
  return results_of(*module, batch.input.to(at::kDouble), batch.gradient.to(at::kDouble));
}

inline Results reference(const torch::nn::BatchNormOptions& options, const Batch& batch, std::uint64_t seed) {
  switch (batch.input.dim()) {
    case 4:
      return reference_with<torch::nn::BatchNorm2d>(options, batch, seed);
    case 5:
      return reference_with<torch::nn::BatchNorm3d>(options, batch, seed);
    default:
      return reference_with<torch::nn::BatchNorm1d>(options, batch, seed);
  }
}

inline void expect_same_bits(const World& world, const at::Tensor& tensor, const std::string& what) {
  const auto bytes = tensor.detach().cpu().contiguous().view(-1).view(at::kByte);
  const auto texts = world.all_gather_text(
      std::string(bytes.const_data_ptr<std::uint8_t>(), bytes.const_data_ptr<std::uint8_t>() + bytes.numel()));
  for (const auto& text : texts) {
    EXPECT_TRUE(text == texts[0]) << what;
  }
}

/// Runs this rank's part and compares everything with the reference.
inline void expect_equal_to_joined(const World& world, nn::SyncBatchNormImpl& module, const Batch& batch,
                                   const at::Tensor& input, const at::Tensor& gradient, const Results& expected) {
  const auto tolerance = tolerance_of(input.scalar_type());
  const auto sums = Tolerance{tolerance.relative, 10 * tolerance.absolute};
  const auto exact = tolerance_of(input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const auto actual = results_of(module, input, gradient);
  EXPECT_EQ(actual.output.scalar_type(), input.scalar_type());
  EXPECT_EQ(actual.input_grad.scalar_type(), input.scalar_type());
  expect_close(actual.output, batch.part_of(expected.output, world.rank()), tolerance, "output");
  expect_close(actual.input_grad, batch.part_of(expected.input_grad, world.rank()), tolerance, "input's gradient");
  if (module.weight.defined()) {
    world.all_reduce(actual.weight_grad).wait();
    world.all_reduce(actual.bias_grad).wait();
    expect_close(actual.weight_grad, expected.weight_grad, sums, "weight's gradient");
    expect_close(actual.bias_grad, expected.bias_grad, sums, "bias's gradient");
  }
  if (actual.running_mean.defined()) {
    expect_close(actual.running_mean, expected.running_mean, exact, "running mean");
    expect_close(actual.running_var, expected.running_var, exact, "running variance");
    EXPECT_EQ(actual.batches.item<std::int64_t>(), expected.batches.item<std::int64_t>());
    expect_same_bits(world, at::cat({actual.running_mean, actual.running_var}), "running statistics");
  }
}

inline nn::SyncBatchNorm made_for(const World& world, const nn::SyncBatchNormOptions& options, at::ScalarType dtype,
                                  std::uint64_t seed) {
  nn::SyncBatchNorm module(options, world);
  // Not by Module::to, which would cast the counter, too.
  for (const auto& tensors : {module->parameters(), module->buffers()}) {
    for (const auto& tensor : tensors) {
      if (dtype == at::kDouble && tensor.defined() && tensor.is_floating_point()) {
        tensor.set_data(tensor.detach().to(at::kDouble));
      }
    }
  }
  set_affine(*module, seed);
  return module;
}

template <class Call>
std::string input_error(Call&& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

inline bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lockstep::test
