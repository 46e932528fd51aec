// SPDX-License-Identifier: Apache-2.0
// State, groups and memory: what torch::optim gets wrong, or a fused step easily could.
#include <ATen/autocast_mode.h>

#include "lockstep/error.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::SGDOptions;

at::Tensor leaf(at::Tensor values) {
  return values.detach().requires_grad_();
}

at::Tensor with_gradient(at::Tensor values, double gradient = 1) {
  auto parameter = leaf(std::move(values));
  parameter.mutable_grad() = at::full_like(parameter, gradient, at::TensorOptions().requires_grad(false));
  return parameter;
}

AdamWParamState& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  return static_cast<AdamWParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

TEST(State, a_parameter_without_gradient_is_not_touched_and_counts_no_step) {
  auto moved = with_gradient(at::ones({4}));
  auto still = leaf(at::ones({4}));
  AdamW optimizer(Tensors{moved, still}, AdamWOptions(0.1).weight_decay(0.5));
  optimizer.step();
  EXPECT_TRUE(same_bits(still, at::ones({4})));
  EXPECT_FALSE(same_bits(moved, at::ones({4})));
  EXPECT_EQ(optimizer.state().count(still.unsafeGetTensorImpl()), 0u);
}

TEST(State, parameters_that_miss_steps_keep_counts_of_their_own) {
  // Beside stock AdamW, with a different set of gradients in every step.
  Tensors ours, theirs;
  for (int i = 0; i < 6; ++i) {
    ours.push_back(leaf(at::full({8}, 1.0 + i)));
    theirs.push_back(leaf(at::full({8}, 1.0 + i)));
  }
  AdamW fused(ours, AdamWOptions(0.1));
  torch::optim::AdamW stock(theirs, AdamWOptions(0.1));
  for (int step = 0; step < 12; ++step) {
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const bool takes_it = (static_cast<std::size_t>(step) * 7 + i * 5) % 3 != 0;
      const auto gradient = takes_it ? at::full({8}, 0.1 * (step + 1)) : at::Tensor();
      ours[i].mutable_grad() = gradient;
      theirs[i].mutable_grad() = gradient;
    }
    fused.step();
    stock.step();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (fused.state().count(ours[i].unsafeGetTensorImpl()) > 0) {
        EXPECT_EQ(state_of(fused, ours[i]).step(), state_of(stock, theirs[i]).step()) << step << " " << i;
      }
    }
  }
  expect_close(ours, theirs, 12 * 1.2e-7, "parameters");
}

TEST(State, a_step_count_set_by_hand_is_obeyed) {
  auto parameter = with_gradient(at::ones({4}));
  auto twin = with_gradient(at::ones({4}));
  AdamW fused(Tensors{parameter}, AdamWOptions(0.1));
  torch::optim::AdamW stock(Tensors{twin}, AdamWOptions(0.1));
  for (auto* optimizer : std::initializer_list<torch::optim::Optimizer*>{&fused, &stock}) {
    optimizer->step();
    state_of(*optimizer, optimizer->param_groups()[0].params()[0]).step(100);
    optimizer->step();
  }
  EXPECT_EQ(state_of(fused, parameter).step(), 101);
  expect_close({parameter}, {twin}, 2.4e-7, "parameter");
}

TEST(State, nobody_inherits_a_dead_parameters_state) {
  AdamW optimizer(Tensors{with_gradient(at::ones({4}))}, AdamWOptions(0.1));
  optimizer.step();
  const void* const old = optimizer.param_groups()[0].params()[0].unsafeGetTensorImpl();
  optimizer.param_groups()[0].params()[0] = with_gradient(at::ones({4}));
  for (int i = 0; i < 2000; ++i) {
    const auto parameter = with_gradient(at::ones({4}));
    ASSERT_NE(parameter.unsafeGetTensorImpl(), old) << i;
  }
  optimizer.step();
  EXPECT_EQ(optimizer.state().count(const_cast<void*>(old)), 0u);
  EXPECT_EQ(state_of(optimizer, optimizer.param_groups()[0].params()[0]).step(), 1);
}

TEST(State, a_tensor_listed_twice_is_stepped_once) {
  auto parameter = with_gradient(at::ones({4}));
  SGD optimizer(Tensors{parameter, parameter}, SGDOptions(0.25));
  optimizer.step();
  EXPECT_TRUE(same_bits(parameter, at::full({4}, 0.75)));
}

TEST(State, parameters_that_share_memory_are_refused) {
  const auto memory = at::ones({8});
  auto a = with_gradient(memory.narrow(0, 0, 6));
  auto b = with_gradient(memory.narrow(0, 4, 4));
  SGD optimizer(Tensors{a, b}, SGDOptions(0.25));
  EXPECT_THROW(optimizer.step(), InputError);
  EXPECT_TRUE(same_bits(memory, at::ones({8})));
}

TEST(State, options_of_another_class_are_refused_wherever_they_come_from) {
  const auto group = [] {
    return torch::optim::OptimizerParamGroup({with_gradient(at::ones({4}))}, std::make_unique<SGDOptions>(0.1));
  };
  AdamW optimizer(Tensors{with_gradient(at::ones({4}))});
  EXPECT_THROW(optimizer.add_param_group(group()), InputError);
  EXPECT_EQ(optimizer.param_groups().size(), 1u);
  torch::optim::Optimizer& base = optimizer;
  base.add_param_group(group());
  if (dynamic_cast<const SGDOptions*>(&optimizer.param_groups()[1].options()) == nullptr) {
    return;  // LibTorch 2.15 gives the group options of the optimizer's class: there is nothing to refuse
  }
  EXPECT_THROW(optimizer.step(), InputError);
  EXPECT_TRUE(same_bits(optimizer.param_groups()[0].params()[0], at::ones({4})));
  EXPECT_THROW(AdamW(std::vector{group()}), InputError);
}

TEST(State, options_out_of_range_are_refused) {
  const Tensors parameters{leaf(at::ones({4}))};
  const auto add = [&](AdamWOptions options) {
    AdamW optimizer(Tensors{leaf(at::ones({1}))});
    optimizer.add_param_group({parameters, std::make_unique<AdamWOptions>(options)});
  };
  EXPECT_THROW(add(AdamWOptions(-1)), InputError);
  EXPECT_THROW(add(AdamWOptions(std::nan(""))), InputError);
  EXPECT_THROW(add(AdamWOptions(0.1).betas({1.0, 0.9})), InputError);
  EXPECT_THROW(add(AdamWOptions(0.1).eps(-1)), InputError);
  EXPECT_NO_THROW(add(AdamWOptions(0.1)));
}

TEST(State, groups_have_options_of_their_own_even_in_adjacent_memory) {
  const auto memory = at::ones({8});
  auto a = with_gradient(memory.narrow(0, 0, 4));
  auto b = with_gradient(memory.narrow(0, 4, 4));
  SGD optimizer(Tensors{a}, SGDOptions(0.25));
  optimizer.add_param_group({{b}, std::make_unique<SGDOptions>(0.5)});
  optimizer.step();
  EXPECT_TRUE(same_bits(a, at::full({4}, 0.75)));
  EXPECT_TRUE(same_bits(b, at::full({4}, 0.5)));
}

TEST(State, an_update_between_forward_and_backward_is_noticed) {
  for (const bool adam : {true, false}) {
    auto parameter = with_gradient(at::ones({4}));
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (adam) {
      optimizer = std::make_unique<AdamW>(Tensors{parameter});
    } else {
      optimizer = std::make_unique<SGD>(Tensors{parameter}, SGDOptions(0.1));
    }
    const auto loss = (parameter * parameter).sum();
    optimizer->step();
    EXPECT_THROW(loss.backward(), c10::Error);
  }
}

TEST(State, G2_casts_that_autocast_has_cached_are_dropped) {
  auto weight = with_gradient(at::ones({2, 2}), -1);
  SGD optimizer(Tensors{weight}, SGDOptions(1));
  const auto x = at::ones({1, 2});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
  const auto before = at::linear(x, weight);
  optimizer.step();
  const auto after = at::linear(x, weight);
  at::autocast::decrement_nesting();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(before[0][0].item<float>(), 2);
  EXPECT_EQ(after[0][0].item<float>(), 4);
}

TEST(State, a_closure_is_run_with_gradients_on) {
  auto parameter = leaf(at::ones({4}));
  SGD optimizer(Tensors{parameter}, SGDOptions(0.25));
  const at::NoGradGuard outside;
  const auto loss = optimizer.step([&] {
    auto value = parameter.sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 4);
  EXPECT_TRUE(same_bits(parameter, at::full({4}, 0.75)));
}

/// Parameter, gradient and moments each in another memory order, beside a run where all are contiguous.
TEST(State, any_memory_order_gives_the_same_values) {
  const auto values = at::randn({4, 6, 5}, at::make_generator<at::CPUGeneratorImpl>(5));
  const auto gradient = at::randn({4, 6, 5}, at::make_generator<at::CPUGeneratorImpl>(6));
  const auto padded = [](const at::Tensor& t) {
    auto wide = at::zeros({4, 6, 9});
    auto slice = wide.narrow(2, 2, 5);
    slice.copy_(t);
    return slice;
  };
  const auto permuted = [](const at::Tensor& t) { return t.permute({2, 0, 1}).contiguous().permute({1, 2, 0}); };
  const auto run = [&](const at::Tensor& w, const at::Tensor& g) {
    auto parameter = leaf(w);
    AdamW optimizer(Tensors{parameter}, AdamWOptions(0.1).amsgrad(true));
    for (int i = 0; i < 3; ++i) {
      parameter.mutable_grad() = g;
      optimizer.step();
    }
    return Tensors{parameter.detach().contiguous(), state_of(optimizer, parameter).exp_avg().contiguous()};
  };
  const auto expected = run(values.clone(), gradient);
  for (const auto& w : {permuted(values), padded(values)}) {
    for (const auto& g : {gradient, permuted(gradient), padded(gradient)}) {
      expect_same_bits(run(w.clone(at::MemoryFormat::Preserve), g), expected, "dense");
      expect_same_bits(run(w, g), expected, "as it is");
      w.copy_(values);
    }
  }
  const auto ones = at::ones({1}).expand({4, 6, 5});
  expect_same_bits(run(values.clone(), ones), run(values.clone(), ones.contiguous()), "expanded");
}

TEST(State, moments_of_stray_memory_are_taken_in) {
  // As after a load by an optimizer that keeps them in 16 bits, or in another order.
  auto parameter = with_gradient(at::ones({4, 6}, at::kBFloat16));
  AdamW optimizer(Tensors{parameter}, AdamWOptions(0.1));
  auto state = std::make_unique<AdamWParamState>();
  state->step(3);
  state->exp_avg(at::full({6, 4}, 0.5, at::kBFloat16).t());
  state->exp_avg_sq(at::full({4, 6}, 0.25, at::kBFloat16));
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  optimizer.step();
  auto& now = state_of(optimizer, parameter);
  EXPECT_EQ(now.step(), 4);
  EXPECT_EQ(now.exp_avg().scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(now.exp_avg()[0][0].item<float>(), 0.55f);
}

TEST(State, what_no_loop_serves_is_refused_before_anything_moves) {
  auto good = with_gradient(at::ones({4}));
  const auto refuse = [&](at::Tensor bad, at::Tensor gradient) {
    bad.requires_grad_();
    bad.mutable_grad() = std::move(gradient);
    AdamW optimizer(Tensors{good, bad});
    EXPECT_THROW(optimizer.step(), InputError);
    EXPECT_TRUE(same_bits(good, at::ones({4})));
  };
  refuse(at::ones({4}, at::kComplexFloat), at::ones({4}, at::kComplexFloat));
  refuse(at::ones({4}), at::ones({4}, at::kDouble));
  refuse(at::ones({4}), at::ones({4}).to_sparse());
  AdamW optimizer(Tensors{good});
  EXPECT_THROW(optimizer.step_fused({.grad_scale = at::ones({1}, at::kDouble)}), InputError);
  EXPECT_THROW(optimizer.step_fused({.found_inf = at::ones({2})}), InputError);
  EXPECT_TRUE(same_bits(good, at::ones({4})));
}

TEST(State, options_changed_between_steps_count_from_the_next) {
  auto parameter = with_gradient(at::ones({4}));
  SGD optimizer(Tensors{parameter}, SGDOptions(0.25), {.capturable = true});
  optimizer.step();
  optimizer.param_groups()[0].options().set_lr(0.5);
  optimizer.step();
  EXPECT_TRUE(same_bits(parameter, at::full({4}, 0.25)));
  static_cast<SGDOptions&>(optimizer.param_groups()[0].options()).momentum(0.5);
  optimizer.step();  // the first with a buffer takes the gradient itself
  EXPECT_TRUE(same_bits(parameter, at::full({4}, -0.25)));
}

}  // namespace
}  // namespace lockstep::optim
