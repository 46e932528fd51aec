// SPDX-License-Identifier: Apache-2.0
// The CUDA passes beside the CPU's, which other tests compare with torch and Python. Needs one CUDA device.
//
// Both sides round alike: products that are added are fused on both, everything else is rounded by itself, division and
// square root are exact to the last bit on both. So SGD's and Adam's bits are equal. Only sums of a norm are made in
// another order, in fp64: the fp32 norm may differ in its last bit, and what it clips in a few.

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/lamb.h"
#include "lockstep/optim/sgd.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr int kSteps = 6;
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble};
const at::Device kCuda(at::kCUDA, 0);

Tensors to_cuda(const Tensors& tensors) {
  Tensors out;
  for (const auto& t : tensors) {
    out.push_back(t.detach().to(kCuda).requires_grad_(t.requires_grad()));
  }
  return out;
}

/// Scaled steps, the third left out.
template <class Optimizer>
void train(Optimizer& optimizer, const Tensors& parameters, const Tensors& cpu_parameters) {
  const auto device = parameters[0].device();
  for (int step = 0; step < kSteps; ++step) {
    auto gradients = make_gradients(cpu_parameters, step, 1024);
    set_gradients(parameters, device.is_cuda() ? to_cuda(gradients) : gradients);
    optimizer.step_scaled(one(1024, device), one(step == 2 ? 1 : 0, device));
  }
  optimizer.sync_steps();
}

template <class Optimizer, class Options>
void expect_cpu_and_cuda_equal(const Options& options, FusedOptions fused = {}) {
  for (const auto dtype : kDtypes) {
    auto on_cpu = make_parameters(dtype, 11);
    auto on_cuda = to_cuda(on_cpu);
    Optimizer cpu(on_cpu, options, fused);
    Optimizer cuda(on_cuda, options, fused);
    train(cpu, on_cpu, on_cpu);
    train(cuda, on_cuda, on_cpu);
    expect_same_bits(detached(on_cuda), detached(on_cpu), c10::toString(dtype));
    for (std::size_t i = 0; i < on_cpu.size(); ++i) {
      const auto master = cpu.master(on_cpu[i]);
      EXPECT_EQ(master.defined(), cuda.master(on_cuda[i]).defined());
      EXPECT_TRUE(!master.defined() || same_bits(master, cuda.master(on_cuda[i]))) << dtype << " " << i;
    }
  }
}

TEST(Cuda, sgd_equals_the_cpu) {
  expect_cpu_and_cuda_equal<SGD>(SGDOptions(0.1).weight_decay(0.1));
  expect_cpu_and_cuda_equal<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.2), {.maximize = true});
  expect_cpu_and_cuda_equal<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true), {.master_weights = true});
}

TEST(Cuda, adam_equals_the_cpu) {
  expect_cpu_and_cuda_equal<Adam>(AdamOptions(0.01).weight_decay(0.1));
  expect_cpu_and_cuda_equal<AdamW>(AdamWOptions(0.01).amsgrad(true), {.master_weights = true});
  expect_cpu_and_cuda_equal<AdamW>(AdamWOptions(0.01), {.master_weights = true, .capturable = true});
}

TEST(Cuda, lamb_equals_the_cpu_within_rounding) {
  // Sums of squares are made in another order, in fp64: a factor may differ in its last fp32 bit, once a step.
  for (const auto dtype : kDtypes) {
    const auto on_cpu = make_parameters(dtype, 11);
    const auto on_cuda = to_cuda(on_cpu);
    Lamb cpu(on_cpu, LambOptions(0.01), {.master_weights = true});
    Lamb cuda(on_cuda, LambOptions(0.01), {.master_weights = true});
    train(cpu, on_cpu, on_cpu);
    train(cuda, on_cuda, on_cpu);
    for (std::size_t i = 0; i < on_cpu.size(); ++i) {
      const auto master = cpu.master(on_cpu[i]);
      expect_close({master.defined() ? cuda.master(on_cuda[i]) : on_cuda[i].detach()},
                   {master.defined() ? master : on_cpu[i].detach()}, kSteps * 2.4e-7, c10::toString(dtype));
    }
  }
}

TEST(Cuda, step_counts_come_back_without_the_skipped_step) {
  auto parameters = to_cuda(make_parameters(at::kFloat, 11));
  AdamW optimizer(parameters);
  train(optimizer, parameters, make_parameters(at::kFloat, 11));
  for (const auto& p : parameters) {
    auto& state = static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(p.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step(), kSteps - 1);
  }
}

TEST(Cuda, norms_and_clipping_equal_the_cpu) {
  for (const auto dtype : kDtypes) {
    for (const double type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
      auto on_cpu = make_parameters(dtype, 11);
      set_gradients(on_cpu, make_gradients(on_cpu, 0, 3));
      auto on_cuda = to_cuda(on_cpu);
      for (std::size_t i = 0; i < on_cpu.size(); ++i) {
        on_cuda[i].mutable_grad() = on_cpu[i].grad().to(kCuda);
      }
      const auto expected = clip_grad_norm_(on_cpu, 1, {.norm_type = type});
      const auto norm = clip_grad_norm_(on_cuda, 1, {.norm_type = type});
      EXPECT_TRUE(norm.is_cuda());
      EXPECT_NEAR(norm.item<double>() / expected.item<double>(), 1, 2.4e-7);
      // One unit in the last place of the factor, then one of the result.
      const double unit = dtype == at::kBFloat16 ? 1.0 / 128 : dtype == at::kHalf ? 1.0 / 1024 : 5e-7;
      for (std::size_t i = 0; i < on_cpu.size(); ++i) {
        expect_close({on_cuda[i].grad()}, {on_cpu[i].grad()}, unit, c10::toString(dtype));
      }
    }
  }
}

TEST(Trials, J6_nan_inf_and_large_values_anywhere) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      for (const std::int64_t place : {0, 8191, 8192, 100001}) {
        auto parameter = at::zeros({100002}, at::TensorOptions(kCuda).dtype(dtype)).requires_grad_();
        parameter.mutable_grad() = at::ones({100002}, at::TensorOptions(kCuda).dtype(dtype));
        parameter.grad()[place] = bad;
        const auto clip = clip_factor({parameter}, 1);
        EXPECT_EQ(clip.found_inf.item<float>(), 1) << place;
        EXPECT_EQ(clip.factor.item<float>(), 1);
      }
    }
  }
  auto large = at::zeros({16}, at::TensorOptions(kCuda)).requires_grad_();
  large.mutable_grad() = at::full({16}, 1e30, at::TensorOptions(kCuda));
  EXPECT_FLOAT_EQ(clip_grad_norm_({large}, 1).item<float>(), 4e30f);
}

TEST(Trials, J2_more_spans_than_a_launch_carries_with_an_empty_one_anywhere) {
  for (const int count : {1, 57, 58, 59, 130, 300}) {
    for (int place = 0; place <= count; place += std::max(1, count / 3)) {
      Tensors parameters;
      for (int i = 0; i <= count; ++i) {
        parameters.push_back(at::full({i == place ? 0 : 3}, i, at::TensorOptions(kCuda).dtype(at::kFloat)));
        parameters.back().requires_grad_().mutable_grad() = at::ones_like(parameters.back().detach());
      }
      EXPECT_EQ(clip_factor(parameters, 1, {.norm_type = 1}).norm.item<float>(), 3.0f * static_cast<float>(count));
      SGD optimizer(parameters, SGDOptions(0.5));
      optimizer.step();
      for (int i = 0; i <= count; ++i) {
        const auto& p = parameters[static_cast<std::size_t>(i)];
        ASSERT_TRUE(same_bits(p, at::full({i == place ? 0 : 3}, i - 0.5, at::kFloat))) << count << " " << place;
      }
    }
  }
}

TEST(Trials, J1_elements_beyond_32_bits_are_updated) {
  for (const std::int64_t count : {(std::int64_t{1} << 31) + 8, (std::int64_t{1} << 32) + 1}) {
    const auto options = at::TensorOptions(kCuda).dtype(at::kBFloat16);
    Tensors parameters{at::ones({5}, options), at::ones({count}, options), at::ones({7}, options)};
    for (auto& p : parameters) {
      p.requires_grad_().mutable_grad() = at::full_like(p.detach(), 2);
    }
    const auto clip = clip_factor(parameters, 1e9, {.norm_type = 1});
    EXPECT_EQ(clip.norm.item<float>(), static_cast<float>(2 * (count + 12)));
    SGD optimizer(parameters, SGDOptions(0.25));
    optimizer.step();
    for (const auto& p : parameters) {
      EXPECT_EQ(p[0].item<float>(), 0.5f);
      EXPECT_EQ(p[-1].item<float>(), 0.5f);
      EXPECT_EQ(p.detach().eq(0.5).all().item<bool>(), true);
    }
  }
}

TEST(Cuda, misaligned_views_equal_the_cpu) {
  const auto run = [](const at::Device device) {
    auto memory = at::arange(2000, at::TensorOptions(device).dtype(at::kFloat));
    auto parameter = memory.narrow(0, 3, 1501).detach().requires_grad_();
    parameter.mutable_grad() = memory.narrow(0, 5, 1501).clone();
    AdamW optimizer(Tensors{parameter}, AdamWOptions(0.1));
    optimizer.step();
    return memory;
  };
  EXPECT_TRUE(same_bits(run(kCuda), run(at::kCPU)));
}

TEST(Cuda, a_captured_step_counts_on_the_device_and_takes_new_rates) {
  const auto on_cpu = make_parameters(at::kFloat, 11);
  const auto on_cuda = to_cuda(on_cpu);
  const auto gradients = make_gradients(on_cpu, 0);
  set_gradients(on_cpu, gradients);
  set_gradients(on_cuda, to_cuda(gradients));
  AdamW cpu(on_cpu, AdamWOptions(0.01));
  AdamW cuda(on_cuda, AdamWOptions(0.01), {.capturable = true});
  const auto found_inf = one(0, kCuda);
  const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool());
  torch::cuda::synchronize();
  cuda.step_scaled({}, found_inf);  // makes the state
  cpu.step();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  cuda.step_scaled({}, found_inf);
  graph.capture_end();
  for (const double rate : {0.02, 0.03, 0.04}) {
    cuda.param_groups()[0].options().set_lr(rate);
    cuda.upload_learning_rates();
    found_inf.fill_(rate == 0.03 ? 1 : 0);
    graph.replay();
    if (rate != 0.03) {
      cpu.param_groups()[0].options().set_lr(rate);
      cpu.step();
    }
  }
  cuda.sync_steps();
  expect_same_bits(detached(on_cuda), detached(on_cpu), "parameters");
  auto& state = static_cast<torch::optim::AdamWParamState&>(*cuda.state().at(on_cuda[0].unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 3);
}

}  // namespace
}  // namespace lockstep::optim
