// SPDX-License-Identifier: Apache-2.0
// Calls, states, errors and saved state of GradScaler. Names with a number are the conformance list's (E5).
#include "lockstep/amp/grad_scaler.h"

#include <gtest/gtest.h>

#include "amp/amp_testing.h"

namespace lockstep::amp {
namespace {

using at::Tensor;
using testing::error_of;
using testing::kInf;
using testing::kNan;
using testing::one_parameter;
using torch::optim::SGD;

/// One iteration with the given true gradient.
StepOutcome iterate(GradScaler& scaler, torch::optim::Optimizer& optimizer, const Tensor& p, float gradient) {
  optimizer.zero_grad();
  scaler.scale((p * gradient).sum()).backward();
  auto outcome = scaler.step(optimizer);
  scaler.update();
  return outcome;
}

void set_gradient(const Tensor& parameter, const Tensor& gradient) {
  parameter.mutable_grad() = gradient;
}

TEST(GradScaler, has_the_defaults_of_python) {
  const GradScaler scaler;
  EXPECT_TRUE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_EQ(scaler.get_growth_factor(), 2);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.5);
  EXPECT_EQ(scaler.get_growth_interval(), 2000);
  EXPECT_FALSE(scaler.scale_tensor().defined());
}

// 78
TEST(GradScaler, unscale_handles_mixed_dtypes_and_strides_and_finds_any_inf) {
  const std::vector<Tensor> shapes{
      at::ones({3, 4}), at::ones({4, 3}).t(), at::ones({2, 5}, at::kDouble), at::ones({7}, at::kBFloat16),
      at::ones({}),     at::ones({0})};
  for (int bad = -1; bad < 4; ++bad) {
    std::vector<Tensor> parameters;
    for (const auto& shape : shapes) {
      parameters.push_back(shape.clone().requires_grad_());
      set_gradient(parameters.back(), at::full_like(shape, 32));
    }
    if (bad >= 0) {
      parameters[static_cast<std::size_t>(bad)].grad().flatten().data().view(-1)[-1].fill_(bad % 2 == 0 ? kInf : kNan);
      parameters[static_cast<std::size_t>(bad)].grad().select(0, 0).fill_(bad % 2 == 0 ? kInf : kNan);
    }
    SGD optimizer(parameters, 1.0);
    GradScaler scaler({.init_scale = 4});
    scaler.scale(at::ones({}));
    scaler.unscale_(optimizer);
    const auto outcome = scaler.step(optimizer);
    EXPECT_EQ(outcome.skipped(), bad >= 0) << bad;
    if (bad < 0) {
      for (const auto& parameter : parameters) {
        EXPECT_TRUE(at::equal(parameter.grad(), at::full_like(parameter.grad(), 8)));
      }
    }
  }
}

// 79
TEST(GradScaler, update_follows_the_law) {
  GradScaler scaler({.init_scale = 4, .growth_factor = 2, .backoff_factor = 0.25, .growth_interval = 2});
  const auto p = one_parameter();
  SGD optimizer({p}, 0.1);
  const auto after = [&](float gradient) {
    iterate(scaler, optimizer, p, gradient);
    return std::pair(scaler.get_scale(), scaler.state_dict().at("_growth_tracker"));
  };
  EXPECT_EQ(after(1), std::pair(4.0, 1.0));
  EXPECT_EQ(after(1), std::pair(8.0, 0.0));
  EXPECT_EQ(after(kInf), std::pair(2.0, 0.0));
}

// 80
TEST(GradScaler, unscales_sparse_gradients) {
  const auto index = at::tensor({0, 1, 1}, at::kLong).view({1, 3});
  const auto outcome_of = [&](const Tensor& values) {
    const auto p = at::zeros({4}, values.scalar_type()).requires_grad_();
    SGD optimizer({p}, 1.0);
    GradScaler scaler({.init_scale = 4, .allow_fp16_gradients = true});
    scaler.scale(at::ones({}));
    set_gradient(p, at::sparse_coo_tensor(index, values, {4}));
    scaler.unscale_(optimizer);
    return std::pair(scaler.step(optimizer).skipped(), p.grad().coalesce().values());
  };
  const auto [skipped, values] = outcome_of(at::tensor({16.f, 32.f, 64.f}));
  EXPECT_FALSE(skipped);
  EXPECT_TRUE(at::equal(values, at::tensor({4.f, 24.f})));
  EXPECT_TRUE(outcome_of(at::tensor({1.f, kInf, 1.f})).first);
  EXPECT_TRUE(outcome_of(at::tensor({kNan, 1.f, 1.f})).first);
}

// 81
TEST(GradScaler, scale_keeps_containers_and_never_overflows_fp16) {
  GradScaler scaler({.init_scale = 65536});
  const std::tuple<Tensor, std::vector<Tensor>> outputs{at::ones({2}, at::kHalf),
                                                        {at::ones({}, at::kDouble), Tensor()}};
  const auto [first, rest] = scaler.scale(outputs);
  EXPECT_TRUE(at::equal(first, at::full({2}, 65536.f)));
  EXPECT_EQ(rest[0].scalar_type(), at::kDouble);
  EXPECT_EQ(rest[0].item<double>(), 65536);
  EXPECT_FALSE(rest[1].defined());
}

// 82
TEST(GradScaler, state_dict_restores_fresh_and_used_scalers) {
  GradScaler source({.init_scale = 3, .growth_factor = 4, .backoff_factor = .5, .growth_interval = 2});
  const auto p = one_parameter();
  SGD optimizer({p}, 0.1);
  iterate(source, optimizer, p, 1);
  for (const bool used : {false, true}) {
    GradScaler target({.init_scale = 6, .growth_factor = 7, .backoff_factor = .8, .growth_interval = 9});
    if (used) {
      iterate(target, optimizer, p, 1);
    }
    target.load_state_dict(source.state_dict());
    EXPECT_EQ(target.state_dict(), source.state_dict());
    iterate(target, optimizer, p, 1);
    EXPECT_EQ(target.get_scale(), 12);
  }
}

TEST(GradScaler, refuses_states_that_do_not_fit_and_keeps_its_own) {
  GradScaler scaler;
  const auto before = scaler.state_dict();
  const auto with = [&](const char* key, double value) {
    auto state = before;
    state[key] = value;
    return error_of([&] { scaler.load_state_dict(state); });
  };
  EXPECT_NE(error_of([&] { scaler.load_state_dict({}); }).find("the state is empty"), std::string::npos);
  EXPECT_NE(error_of([&] { scaler.load_state_dict({{"scale", 1}}); }).find("lacks the key"), std::string::npos);
  EXPECT_NE(with("tracker", 1).find("unknown key, tracker"), std::string::npos);
  EXPECT_NE(with("scale", 0).find("out of range"), std::string::npos);
  EXPECT_NE(with("scale", kNan).find("not finite"), std::string::npos);
  EXPECT_NE(with("growth_factor", 1).find("growth_factor is out of range; got 1, expected above 1"), std::string::npos);
  EXPECT_NE(with("_growth_tracker", 2000).find("0 to 1999"), std::string::npos);
  EXPECT_EQ(scaler.state_dict(), before);
}

TEST(GradScaler, refuses_bad_options) {
  const auto refuses = [](const GradScalerOptions& options, const char* name) {
    return error_of([&] { const GradScaler scaler(options); }).find(name) != std::string::npos;
  };
  EXPECT_TRUE(refuses({.init_scale = 0}, "scale is out of range"));
  EXPECT_TRUE(refuses({.init_scale = kNan}, "scale is out of range"));
  EXPECT_TRUE(refuses({.init_scale = kInf}, "scale is out of range"));
  EXPECT_TRUE(refuses({.growth_factor = 1}, "growth_factor"));
  EXPECT_TRUE(refuses({.backoff_factor = 1}, "backoff_factor"));
  EXPECT_TRUE(refuses({.backoff_factor = 0}, "backoff_factor"));
  EXPECT_TRUE(refuses({.growth_interval = 0}, "growth_interval"));
  EXPECT_TRUE(refuses({.hysteresis = 0}, "hysteresis"));
  EXPECT_TRUE(refuses({.min_scale = 1e-40}, "min_scale"));
  EXPECT_TRUE(refuses({.max_scale = 1e38}, "max_scale"));
  EXPECT_TRUE(refuses({.init_scale = 8, .max_scale = 4}, "scale is out of range"));
  EXPECT_TRUE(refuses({.max_skips_in_a_row = -1}, "max_skips_in_a_row"));
  GradScaler scaler;
  EXPECT_NE(error_of([&] { scaler.set_backoff_factor(2); }), "no error");
  EXPECT_EQ(scaler.get_backoff_factor(), 0.5);
}

TEST(GradScaler, disabled_it_passes_everything_through) {
  GradScaler scaler({.enabled = false});
  const auto p = one_parameter();
  SGD optimizer({p}, 1.0);
  const auto loss = (p * 2).sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  loss.backward();
  scaler.unscale_(optimizer);
  EXPECT_FALSE(scaler.step(optimizer).skipped());
  scaler.update();
  EXPECT_EQ(p.item<float>(), -1);
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
  EXPECT_NO_THROW(scaler.load_state_dict({}));
}

TEST(GradScaler, refuses_fp16_gradients_unless_told) {
  const auto p = at::ones({1}, at::kHalf).requires_grad_();
  SGD optimizer({p}, 1.0);
  GradScaler scaler({.init_scale = 4});
  scaler.scale(p.sum()).backward();
  EXPECT_NE(error_of([&] { scaler.step(optimizer); }).find("attempting to unscale FP16 gradients"), std::string::npos);
  GradScaler told({.init_scale = 4, .allow_fp16_gradients = true});
  told.scale(at::ones({}));
  told.step(optimizer);
  EXPECT_EQ(p.item<float>(), 0);
}

TEST(GradScaler, several_optimizers_share_a_scale_and_only_the_overflowing_one_skips) {
  GradScaler scaler({.init_scale = 4});
  const auto a = one_parameter(), b = one_parameter();
  SGD first({a}, 1.0), second({b}, 1.0);
  scaler.scale((a * 0.5).sum()).backward();
  scaler.scale((b * kInf).sum()).backward();
  EXPECT_FALSE(scaler.step(first).skipped());
  EXPECT_TRUE(scaler.step(second).skipped());
  scaler.update();
  EXPECT_EQ(a.item<float>(), 0.5);
  EXPECT_EQ(b.item<float>(), 1);
  EXPECT_EQ(scaler.get_scale(), 2);
}

TEST(GradScaler, an_optimizer_that_skips_on_the_device_gets_scale_and_flag) {
  GradScaler scaler({.init_scale = 4});
  const auto p = at::ones({1}, at::kHalf).requires_grad_();
  testing::DeviceSgd optimizer({p}, 0.25);
  EXPECT_FALSE(iterate(scaler, optimizer, p, 1).skipped());
  EXPECT_EQ(p.item<float>(), 0.75);
  EXPECT_TRUE(iterate(scaler, optimizer, p, kInf).skipped());
  EXPECT_EQ(p.item<float>(), 0.75);
  EXPECT_EQ(optimizer.calls, 2);
  EXPECT_EQ(scaler.get_scale(), 2);
}

TEST(GradScaler, update_takes_a_new_scale) {
  GradScaler scaler;
  EXPECT_NE(error_of([&] { scaler.update(8); }).find("no loss has been scaled yet"), std::string::npos);
  scaler.scale(at::ones({}));
  scaler.update(8);
  EXPECT_EQ(scaler.get_scale(), 8);
  scaler.update(at::full({1}, 16.f));
  EXPECT_EQ(scaler.get_scale(), 16);
  EXPECT_NE(error_of([&] { scaler.update(0); }).find("out of range"), std::string::npos);
  EXPECT_NE(error_of([&] { scaler.update(at::ones({2})); }).find("does not fit"), std::string::npos);
  EXPECT_NE(error_of([&] { scaler.update(at::ones({}, at::kDouble)); }).find("one fp32 element"), std::string::npos);
  EXPECT_EQ(scaler.get_scale(), 16);
}

TEST(GradScaler, stays_inside_min_and_max) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 1, .min_scale = 2, .max_scale = 8});
  const auto p = one_parameter();
  SGD optimizer({p}, 0.1);
  for (int i = 0; i < 4; ++i) {
    iterate(scaler, optimizer, p, 1);
  }
  EXPECT_EQ(scaler.get_scale(), 8);
  for (int i = 0; i < 4; ++i) {
    iterate(scaler, optimizer, p, kInf);
  }
  EXPECT_EQ(scaler.get_scale(), 2);
}

// The law of apex's update_scale_hysteresis, in plain numbers, over a grid of options and random histories.
TEST(GradScaler, hysteresis_follows_the_law_over_a_grid) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  for (const int hysteresis : {1, 2, 3, 5}) {
    for (const int interval : {1, 2, 4}) {
      GradScaler scaler({.init_scale = 1024, .growth_interval = interval, .hysteresis = hysteresis});
      const auto p = one_parameter();
      SGD optimizer({p}, 0.0);
      double scale = 1024;
      int growth = 0, tokens = hysteresis;
      for (int i = 0; i < 40; ++i) {
        const bool found = at::rand({}, generator).item<double>() < 0.5;
        iterate(scaler, optimizer, p, found ? kNan : 1.f);
        tokens = found ? tokens - 1 : hysteresis;
        growth = found ? 0 : growth + 1;
        if (found && tokens <= 0) {
          scale *= 0.5;
        } else if (!found && growth == interval) {
          scale *= 2;
          growth = 0;
        }
        ASSERT_EQ(scaler.get_scale(), scale) << hysteresis << " " << interval << " " << i;
        ASSERT_EQ(scaler.state_dict().at("_growth_tracker"), growth);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::amp
