// SPDX-License-Identifier: Apache-2.0
// Fused LAMB beside the plain loop.
#include "lockstep/optim/lamb.h"

#include <sstream>

#include "lockstep/error.h"
#include "lockstep/optim/adam.h"
#include "optim/saving.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;

constexpr int kLambSteps = 10;

/// Among ordinary ones: a weight of zeros, whose first step has no ratio.
Tensors parameters_of(at::ScalarType dtype) {
  auto parameters = make_parameters(dtype, 9);
  parameters.push_back(at::zeros({70}, dtype).requires_grad_());
  return parameters;
}

std::vector<LambOptions> all_options() {
  return {LambOptions(0.01), LambOptions(0.01).weight_decay(0), LambOptions(0.01).weight_decay(0).always_adapt(true),
          LambOptions(0.01).betas({0.8, 0.9}).eps(1e-3)};
}

TEST(Lamb, equals_the_plain_loop_within_rounding) {
  for (const auto& [dtype, bound] : {std::pair{at::kFloat, kLambSteps * 1e-6}, std::pair{at::kDouble, 1e-13}}) {
    for (const auto& options : all_options()) {
      const auto ours = parameters_of(dtype);
      const auto theirs = clone(ours);
      Lamb fused(ours, options);
      PlainLamb plain(theirs, options);
      train(fused, 0, kLambSteps);
      train(plain, 0, kLambSteps);
      expect_close(detached(ours), detached(theirs), bound, c10::toString(dtype));
    }
  }
}

TEST(Lamb, a_tensors_norm_is_its_own_even_in_an_arena) {
  const auto run = [](const Tensors& parameters) {
    Lamb optimizer(parameters, LambOptions(0.1));
    train(optimizer, 0, 3);
    return at::cat(detached(parameters));
  };
  const auto arena = at::cat({at::full({64}, 1.0), at::full({64}, 100.0)});
  const Tensors views{arena.narrow(0, 0, 64).detach().requires_grad_(),
                      arena.narrow(0, 64, 64).detach().requires_grad_()};
  const auto strays = clone(views);
  EXPECT_TRUE(same_bits(run(views), run(strays)));
}

TEST(Lamb, masters_skips_and_scales_work_as_for_the_others) {
  const auto parameters = parameters_of(at::kBFloat16);
  Tensors masters;
  for (const auto& p : parameters) {
    masters.push_back(p.detach().to(at::kFloat, false, true).requires_grad_());
  }
  Lamb fused(parameters, LambOptions(0.01), {.master_weights = true});
  PlainLamb plain(masters, LambOptions(0.01));
  for (int step = 0; step < kLambSteps; ++step) {
    const bool skip = step % 3 == 0;
    auto gradients = make_gradients(parameters, step, 1024);
    set_gradients(parameters, gradients);
    fused.step_scaled(one(1024), one(skip ? 1 : 0));
    if (!skip) {
      for (auto& gradient : gradients) {
        gradient = gradient.to(at::kFloat) / 1024;
      }
      set_gradients(masters, gradients);
      plain.step();
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    expect_close({fused.master(parameters[i])}, {masters[i].detach()}, kLambSteps * 1e-6, "master");
    EXPECT_TRUE(same_bits(parameters[i], fused.master(parameters[i]).to(at::kBFloat16)));
  }
}

TEST(Lamb, sums_do_not_depend_on_threads) {
  const auto before = at::get_num_threads();
  const auto run = [](int threads) {
    at::set_num_threads(threads);
    auto parameter = at::randn({300007}, at::make_generator<at::CPUGeneratorImpl>(4)).requires_grad_();
    Lamb optimizer(Tensors{parameter}, LambOptions(0.01));
    train(optimizer, 0, 2);
    return parameter.detach();
  };
  EXPECT_TRUE(same_bits(run(1), run(3)));
  at::set_num_threads(before);
}

TEST(Lamb, resumes_bit_for_bit_and_refuses_other_files) {
  const auto parameters = parameters_of(at::kFloat);
  Lamb optimizer(parameters, LambOptions(0.01).always_adapt(true));
  train(optimizer, 0, 4);
  const auto copies = clone(parameters);
  Lamb resumed(copies, LambOptions(0.5));
  load_from(file_of(optimizer), resumed);
  train(optimizer, 4, 8);
  train(resumed, 4, 8);
  expect_same_bits(detached(copies), detached(parameters), "parameters");
  AdamW adam(clone(parameters));
  train(adam, 0, 1);
  EXPECT_THROW(load_from(file_of(adam), resumed), InputError);
  EXPECT_THROW(load_from(file_of(resumed), adam), InputError);
}

TEST(Lamb, options_out_of_range_are_refused) {
  EXPECT_THROW(Lamb(Tensors{at::ones({1}).requires_grad_()}, LambOptions(-1)), InputError);
  EXPECT_THROW(Lamb(Tensors{at::ones({1}).requires_grad_()}, LambOptions(1).betas({0.5, 1.0})), InputError);
}

}  // namespace
}  // namespace lockstep::optim
