// SPDX-License-Identifier: Apache-2.0
#include "lockstep/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <stdexcept>
#include <thread>

#include "amp/amp_testing.h"
#include "lockstep/error.h"

namespace lockstep::amp {
namespace {

using at::Tensor;
using testing::error_of;
using testing::matmul_dtype;

bool same_state(const AutocastState& a, const AutocastState& b) {
  return a.cpu == b.cpu && a.cuda == b.cuda && a.cache == b.cache;
}

TEST(Autocast, runs_matmul_in_low_precision_and_reductions_in_fp32) {
  const autocast guard(at::kCPU, at::kBFloat16);
  const auto product = at::ones({2, 2}).matmul(at::ones({2, 2}));
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::mse_loss(product, product).scalar_type(), at::kFloat);
  EXPECT_EQ(at::ones({2, 2}, at::kDouble).matmul(at::ones({2, 2}, at::kDouble)).scalar_type(), at::kDouble);
}

TEST(Autocast, nests_and_restores_dtype_and_enabled) {
  {
    const autocast outer(at::kCPU);
    EXPECT_EQ(matmul_dtype(), at::kBFloat16);
    {
      const autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(matmul_dtype(), at::kHalf);
      const autocast off(at::kCPU, at::kHalf, /*enabled=*/false);
      EXPECT_EQ(matmul_dtype(), at::kFloat);
    }
    EXPECT_EQ(matmul_dtype(), at::kBFloat16);
  }
  EXPECT_EQ(matmul_dtype(), at::kFloat);
}

TEST(Autocast, restores_everything_after_an_exception) {
  const auto before = AutocastState::current();
  EXPECT_THROW(
      {
        const autocast outer(at::kCPU, at::kHalf, true, true);
        const autocast inner(at::kCPU, at::kBFloat16);
        throw std::runtime_error("in the region");
      },
      std::runtime_error);
  EXPECT_TRUE(same_state(AutocastState::current(), before));
  EXPECT_EQ(at::autocast::increment_nesting(), 1);
  EXPECT_EQ(at::autocast::decrement_nesting(), 0);
}

TEST(Autocast, refuses_other_dtypes_and_devices_and_changes_nothing) {
  const auto before = AutocastState::current();
  EXPECT_EQ(
      error_of([] { const autocast guard(at::kCPU, at::kDouble); }),
      "[amp.autocast] autocast cannot use this dtype; got Double, expected Half or BFloat16; pass enabled = false "
      "to switch autocast off in a region");
  EXPECT_NE(error_of([] { const autocast guard(at::kMPS); }).find("no autocast for this device type"),
            std::string::npos);
  EXPECT_NO_THROW(const autocast off(at::kCPU, at::kFloat, false));
  EXPECT_TRUE(same_state(AutocastState::current(), before));
}

TEST(Autocast, without_a_cuda_device_autocast_for_cuda_stays_off) {
  if (!at::globalContext().hasCUDA()) {
    const autocast guard(at::kCUDA);
    EXPECT_FALSE(AutocastState::current().cuda.enabled);
  }
}

TEST(Autocast, with_a_cache_a_weight_is_cast_once_and_dropped_at_the_outermost_exit) {
  const auto weight = at::ones({2, 2}).requires_grad_();
  const auto references = weight.getIntrusivePtr().weak_use_count();
  {
    const autocast outer(at::kCPU, at::kBFloat16, true, /*cache=*/true);
    {
      const autocast inner(at::kCPU, at::kBFloat16, true, true);
      at::mm(weight, weight);
    }
    EXPECT_GT(weight.getIntrusivePtr().weak_use_count(), references);
  }
  EXPECT_EQ(weight.getIntrusivePtr().weak_use_count(), references);
}

// ATen's cache holds one cast a weight, whatever its dtype.
TEST(Autocast, a_nested_region_of_another_dtype_gets_casts_of_its_own) {
  const auto weight = at::ones({2, 2}).requires_grad_();
  const autocast outer(at::kCPU, at::kBFloat16, true, true);
  EXPECT_EQ(at::mm(weight, weight).scalar_type(), at::kBFloat16);
  {
    const autocast inner(at::kCPU, at::kHalf, true, true);
    EXPECT_EQ(at::mm(weight, weight).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(at::mm(weight, weight).scalar_type(), at::kBFloat16);
}

TEST(Autocast, with_autocast_carries_the_state_to_another_thread) {
  at::ScalarType plain{}, carried{};
  {
    const autocast guard(at::kCPU, at::kHalf);
    std::thread(with_autocast([&](int) { carried = matmul_dtype(); }), 0).join();
    std::thread([&] { plain = matmul_dtype(); }).join();
  }
  EXPECT_EQ(plain, at::kFloat);
  EXPECT_EQ(carried, at::kHalf);
}

struct Pinned : torch::autograd::Function<Pinned> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    const custom_fwd region(ctx);
    return x.matmul(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const custom_bwd region(ctx);
    last_seen = matmul_dtype();
    return {at::ones_like(grads[0], at::kFloat)};
  }
  static thread_local at::ScalarType last_seen;
};
thread_local at::ScalarType Pinned::last_seen = at::kInt;

TEST(Autocast, custom_bwd_runs_in_the_state_of_forward) {
  const auto x = at::ones({2, 2}).requires_grad_();
  Tensor y;
  {
    const autocast guard(at::kCPU, at::kHalf);
    y = Pinned::apply(x);
  }
  y.sum().backward();
  EXPECT_EQ(Pinned::last_seen, at::kHalf);
  const auto z = Pinned::apply(x);
  const autocast guard(at::kCPU);
  z.sum().backward();
  EXPECT_EQ(Pinned::last_seen, at::kFloat);
}

struct InFp32 : torch::autograd::Function<InFp32> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& index) {
    const custom_fwd region(ctx, at::kCPU, at::kFloat);
    const auto [a, b] = region.cast(std::pair(x, index));
    EXPECT_EQ(b.scalar_type(), at::kLong);
    return a.matmul(a);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const custom_bwd region(ctx);
    return {grads[0].matmul(grads[0]).to(at::kHalf), Tensor()};
  }
};

TEST(Autocast, custom_fwd_casts_inputs_only_inside_a_region) {
  const auto x = at::ones({2, 2}, at::kHalf).requires_grad_();
  const auto index = at::zeros({1}, at::kLong);
  EXPECT_EQ(InFp32::apply(x, index).scalar_type(), at::kHalf);
  const autocast guard(at::kCPU, at::kHalf);
  const auto y = InFp32::apply(x, index);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kHalf);
}

struct ForgotForward : torch::autograd::Function<ForgotForward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const custom_bwd region(ctx);
    return grads;
  }
};

TEST(Autocast, custom_bwd_without_custom_fwd_is_an_error) {
  const auto y = ForgotForward::apply(at::ones({2}).requires_grad_());
  EXPECT_THROW(y.sum().backward(), InputError);
}

TEST(Nested, maps_tensors_in_containers_and_leaves_the_rest) {
  const auto twice = [](const Tensor& t) { return t * 2; };
  const auto one = at::ones({});
  const std::tuple<Tensor, int, std::vector<std::optional<Tensor>>> value{one, 7, {one, std::nullopt, Tensor()}};
  const auto [tensor, number, list] = map_tensors(value, twice);
  EXPECT_EQ(tensor.item<int>(), 2);
  EXPECT_EQ(number, 7);
  EXPECT_EQ(list[0]->item<int>(), 2);
  EXPECT_FALSE(list[1].has_value());
  EXPECT_FALSE(list[2]->defined());
  const std::map<std::string, std::array<Tensor, 1>> map{{"a", {one}}};
  EXPECT_EQ(map_tensors(map, twice).at("a")[0].item<int>(), 2);
  static_assert(!holds_tensors<std::vector<int>> && holds_tensors<const std::pair<int, Tensor>&>);
}

}  // namespace
}  // namespace lockstep::amp
