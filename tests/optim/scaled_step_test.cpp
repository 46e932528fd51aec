// SPDX-License-Identifier: Apache-2.0
// The fused step beside the same things done one after the other, in all ways in which a scaler can be used, for fp32
// parameters and for 16-bit ones with masters.
#include <functional>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/sgd.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;

constexpr int kScaledSteps = 8;
constexpr double kScale = 1024;
constexpr double kMaxNorm = 5;

enum class Mode { no_scaler, unscale_first, clip, inf_in_between, skip };
constexpr Mode kModes[] = {Mode::no_scaler, Mode::unscale_first, Mode::clip, Mode::inf_in_between, Mode::skip};
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kHalf, at::kBFloat16};

double scale_in(Mode mode) {
  return mode == Mode::no_scaler ? 1 : kScale;
}

bool skipped(Mode mode, int step) {
  return (mode == Mode::inf_in_between && (step == 0 || step == 3)) || (mode == Mode::skip && step % 2 == 0);
}

Tensors gradients_for(const Tensors& parameters, Mode mode, int step) {
  auto gradients = make_gradients(parameters, step, scale_in(mode));
  if (mode == Mode::inf_in_between && skipped(mode, step)) {
    gradients.back()[17] = std::numeric_limits<double>::infinity();
  }
  return gradients;
}

/// One fused step.
void fused_step(FusedOptimizer& optimizer, const Tensors& parameters, Mode mode, int step) {
  StepInputs inputs;
  if (mode == Mode::unscale_first) {
    for (const auto& p : parameters) {
      p.mutable_grad() = p.grad().to(at::kFloat) * static_cast<float>(1 / kScale);
    }
  } else if (mode != Mode::no_scaler) {
    inputs.grad_scale = one(kScale);
  }
  if (mode == Mode::clip) {
    inputs.clip_factor = clip_factor(parameters, kMaxNorm, {.grad_scale = one(kScale)}).factor;
  }
  if (mode == Mode::inf_in_between) {
    inputs.found_inf = clip_factor(parameters, kMaxNorm).found_inf;
    EXPECT_EQ(inputs.found_inf.item<float>(), skipped(mode, step) ? 1 : 0);
  } else if (mode == Mode::skip) {
    inputs.found_inf = one(skipped(mode, step) ? 1 : 0);
  }
  optimizer.step_fused(inputs);
}

/// The same with a stock optimizer over fp32 masters: unscale, clip, step, round.
void plain_step(torch::optim::Optimizer& optimizer, const Tensors& masters, const Tensors& gradients, Mode mode,
                int step) {
  if (skipped(mode, step)) {
    return;
  }
  Tensors unscaled;
  double square = 0;
  for (const auto& gradient : gradients) {
    unscaled.push_back(gradient.to(at::kFloat) * static_cast<float>(1 / scale_in(mode)));
    square += unscaled.back().to(at::kDouble).square().sum().item<double>();
  }
  if (mode == Mode::clip) {
    const auto norm = static_cast<float>(std::sqrt(square));
    const float factor = std::min(1.0f, static_cast<float>(kMaxNorm) / (norm + 1e-6f));
    for (auto& gradient : unscaled) {
      gradient.mul_(factor);
    }
  }
  set_gradients(masters, unscaled);
  optimizer.step();
}

struct Outcome {
  Tensors parameters, fused_masters, masters;
};

template <class Fused, class Stock, class Options>
Outcome run(at::ScalarType dtype, Mode mode, const Options& options) {
  auto parameters = make_parameters(dtype, 7);
  Tensors masters;
  for (const auto& p : parameters) {
    masters.push_back(p.detach().to(at::kFloat, false, true).requires_grad_());
  }
  Fused fused(parameters, options, {.master_weights = dtype != at::kFloat});
  Stock stock(masters, options);
  for (int step = 0; step < kScaledSteps; ++step) {
    const auto gradients = gradients_for(parameters, mode, step);
    set_gradients(parameters, gradients);
    fused_step(fused, parameters, mode, step);
    plain_step(stock, masters, gradients, mode, step);
  }
  Outcome outcome{detached(parameters), {}, detached(masters)};
  for (const auto& p : parameters) {
    outcome.fused_masters.push_back(dtype == at::kFloat ? p.detach() : fused.master(p));
  }
  return outcome;
}

Tensors rounded(const Tensors& masters, at::ScalarType dtype) {
  Tensors out;
  for (const auto& master : masters) {
    out.push_back(master.to(dtype));
  }
  return out;
}

std::string name(at::ScalarType dtype, Mode mode) {
  constexpr const char* names[] = {"no scaler", "unscale first", "clip", "inf in between", "skip"};
  return std::string(c10::toString(dtype)) + ", " + names[static_cast<int>(mode)];
}

TEST(ScaledStep, sgd_equals_the_unfused_bit_for_bit) {
  for (const auto dtype : kDtypes) {
    for (const auto mode : kModes) {
      for (const auto& options :
           {torch::optim::SGDOptions(0.1), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01)}) {
        const auto out = run<SGD, torch::optim::SGD>(dtype, mode, options);
        expect_same_bits(out.fused_masters, out.masters, name(dtype, mode));
        expect_same_bits(out.parameters, rounded(out.fused_masters, dtype), name(dtype, mode));
      }
    }
  }
}

TEST(ScaledStep, adamw_equals_the_unfused_within_rounding) {
  for (const auto dtype : kDtypes) {
    for (const auto mode : kModes) {
      const auto options = torch::optim::AdamWOptions(0.01).weight_decay(0.1);
      const auto out = run<AdamW, torch::optim::AdamW>(dtype, mode, options);
      expect_close(out.fused_masters, out.masters, kScaledSteps * 1.2e-7, name(dtype, mode));
      expect_same_bits(out.parameters, rounded(out.fused_masters, dtype), name(dtype, mode));
    }
  }
}

TEST(ScaledStep, a_skipped_step_leaves_every_bit) {
  auto parameters = make_parameters(at::kBFloat16, 7);
  AdamW optimizer(parameters, torch::optim::AdamWOptions(0.1), {.master_weights = true});
  set_gradients(parameters, make_gradients(parameters, 0));
  optimizer.step();
  const auto snapshot = [&] {
    Tensors all = clone(detached(parameters));
    for (const auto& p : parameters) {
      auto& state = static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(p.unsafeGetTensorImpl()));
      EXPECT_EQ(state.step(), 1);
      for (const auto& t : {state.exp_avg(), state.exp_avg_sq(), optimizer.master(p)}) {
        all.push_back(t.clone());
      }
    }
    return all;
  };
  const auto before = snapshot();
  // Any flag but 0 skips: the sum of two devices' flags is 2.
  for (const double flag : {1.0, 2.0, std::nan("")}) {
    optimizer.step_scaled(one(kScale), one(flag));
    expect_same_bits(snapshot(), before, "flag " + std::to_string(flag));
  }
}

TEST(ScaledStep, gradients_may_be_wider_or_narrower_than_their_parameter) {
  for (const auto weight : kDtypes) {
    for (const auto grad : {at::kFloat, weight == at::kFloat ? at::kHalf : weight}) {
      for (const bool master : {true, false}) {
        auto parameter = at::full({5}, 1.0, weight).requires_grad_();
        parameter.mutable_grad() = at::full({5}, 0.5, grad);
        SGD optimizer(Tensors{parameter}, torch::optim::SGDOptions(0.5), {.master_weights = master});
        optimizer.step();
        EXPECT_TRUE(same_bits(parameter, at::full({5}, 0.75, weight))) << weight << " " << grad << " " << master;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::optim
