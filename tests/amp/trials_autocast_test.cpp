// SPDX-License-Identifier: Apache-2.0
// What went wrong with autocast in other systems. The number of a trial is its name.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <thread>

#include "amp/amp_testing.h"
#include "lockstep/amp/autocast.h"

namespace lockstep::amp {
namespace {

using at::Tensor;
using testing::matmul_dtype;

// G1: a cast made without history must not be handed to a forward that needs it.
TEST(Trials, G1_no_grad_forward_first_loses_no_gradient) {
  for (const bool cache : {false, true}) {
    torch::nn::Linear linear(3, 3);
    torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({3}));
    const auto x = at::ones({2, 3});
    const auto gradients = [&](int first) {
      linear->zero_grad();
      norm->zero_grad();
      const autocast guard(at::kCPU, at::kBFloat16, true, cache);
      const auto forward = [&] { return norm(at::addmm(linear->bias, x, linear->weight)).square().sum(); };
      if (first == 1) {
        const at::NoGradGuard no_grad;
        forward();
      } else if (first == 2) {
        const c10::InferenceMode inference;
        forward();
      }
      forward().backward();
      return std::vector{linear->weight.grad().clone(), linear->bias.grad().clone(), norm->weight.grad().clone()};
    };
    const auto expected = gradients(0);
    for (const int first : {1, 2}) {
      const auto got = gradients(first);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], expected[i])) << "cache " << cache << " first " << first << " tensor " << i;
      }
    }
  }
}

// G2: the cache of casts is keyed by address, and misses that the weight was written.
TEST(Trials, G2_a_weight_written_inside_a_region_is_used_at_once) {
  const auto x = at::ones({1, 1});
  const auto product = [&](const Tensor& w) { return at::mm(x, w).item<float>(); };
  const auto w = at::ones({1, 1}).requires_grad_();
  {
    const autocast guard(at::kCPU, at::kBFloat16);
    EXPECT_EQ(product(w), 1);
    w.detach().fill_(2);
    EXPECT_EQ(product(w), 2);
    w.set_data(at::full({1, 1}, 3.0f));
    EXPECT_EQ(product(w), 3);
  }
  const autocast guard(at::kCPU, at::kBFloat16, true, /*cache=*/true);
  EXPECT_EQ(product(w), 3);
  w.detach().fill_(4);
  weights_changed();
  EXPECT_EQ(product(w), 4);
}

// G4: autocast is per thread. The block that is recomputed in backward, and a thread that takes part in forward, carry
// the state explicitly.
TEST(Trials, G4_recomputation_runs_in_the_dtype_of_forward) {
  std::function<Tensor(Tensor)> recompute;
  {
    const autocast guard(at::kCPU, at::kBFloat16);
    recompute = with_autocast([](const Tensor& x) { return x.matmul(x); });
  }
  EXPECT_EQ(recompute(at::ones({2, 2})).scalar_type(), at::kBFloat16);
  const autocast other(at::kCPU, at::kHalf);
  EXPECT_EQ(recompute(at::ones({2, 2})).scalar_type(), at::kBFloat16);
  EXPECT_EQ(matmul_dtype(), at::kHalf);
}

/// A product whose backward is a product again, run by autograd's own thread where there is one.
struct Product : torch::autograd::Function<Product> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& a, const Tensor& b) {
    const custom_fwd region(ctx);
    ctx->save_for_backward({a, b});
    return a.matmul(b);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const custom_bwd region(ctx);
    EXPECT_EQ(matmul_dtype(), at::kBFloat16);
    const auto saved = ctx->get_saved_variables();
    return {grads[0].matmul(saved[1].t()), saved[0].t().matmul(grads[0])};
  }
};

TEST(Trials, G4_a_custom_backward_runs_in_the_dtype_of_forward) {
  const auto a = at::ones({2, 2}).requires_grad_(), b = at::ones({2, 2}).requires_grad_();
  Tensor product;
  {
    const autocast guard(at::kCPU, at::kBFloat16);
    product = Product::apply(a, b);
  }
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
  const autocast other(at::kCPU, at::kHalf);
  product.to(at::kFloat).sum().backward();
  EXPECT_TRUE(at::equal(a.grad(), at::full({2, 2}, 2.f)));
}

TEST(Trials, G4_a_thread_started_inside_a_region_is_outside_of_it) {
  const autocast guard(at::kCPU, at::kBFloat16);
  at::ScalarType plain = at::kDouble, carried = at::kDouble;
  std::thread([&] { plain = matmul_dtype(); }).join();
  std::thread([&, bound = with_autocast([] { return matmul_dtype(); })]() mutable { carried = bound(); }).join();
  EXPECT_EQ(plain, at::kFloat);
  EXPECT_EQ(carried, at::kBFloat16);
}

}  // namespace
}  // namespace lockstep::amp
