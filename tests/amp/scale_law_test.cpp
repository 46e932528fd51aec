// SPDX-License-Identifier: Apache-2.0
// The law of the loss scale beside ATen's, bit for bit, over random histories.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "amp/scale_state.h"
#include "lockstep/error.h"

namespace lockstep::amp {
namespace {

ScaleLaw law_of(double growth, double backoff, std::int64_t interval) {
  return {growth, backoff, interval, 1, 0x1p-126, 0x1p126, true};
}

TEST(ScaleLaw, equals_the_update_of_aten_over_random_histories) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(11);
  const auto histories = at::rand({600}, generator);
  for (const auto& law : {law_of(2, 0.5, 1), law_of(1.1, 0.7, 3), law_of(4, 0.25, 7)}) {
    ScaleState state({65536, 0, 1, 0});
    state.place(at::kCPU);
    auto scale = at::full({}, 65536.F);
    auto tracker = at::zeros({}, at::kInt);
    for (std::int64_t i = 0; i < histories.numel(); ++i) {
      const auto found = histories[i].lt(0.3).to(at::kFloat);
      at::_amp_update_scale_(scale, tracker, found, law.growth_factor, law.backoff_factor, law.growth_interval);
      scale.clamp_(law.min_scale, law.max_scale);
      state.advance(found, law);
      ASSERT_EQ(state.scale().item<float>(), scale.item<float>()) << "update " << i;
      ASSERT_EQ(state.values().growth_tracker, tracker.item<std::int64_t>()) << "update " << i;
    }
  }
}

TEST(ScaleLaw, a_growth_to_infinity_is_left_out) {
  ScaleState state({0x1p127, 0, 1, 0});
  state.place(at::kCPU);
  auto law = law_of(4, 0.5, 1);
  law.max_scale = 3e38;
  state.advance(at::zeros({}), law);
  EXPECT_EQ(state.values().scale, 0x1p127);
  EXPECT_EQ(state.values().growth_tracker, 0);
}

TEST(ScaleLaw, a_static_scale_counts_skips_and_stays) {
  ScaleState state({128, 0, 1, 0});
  state.place(at::kCPU);
  auto law = law_of(2, 0.5, 1);
  law.dynamic = false;
  for (const float found : {1.F, 1.F, 1.F}) {
    state.advance(at::full({}, found), law);
  }
  EXPECT_EQ(state.values().skips, 3);
  state.advance(at::zeros({1}), law);
  EXPECT_EQ(state.values().skips, 0);
  EXPECT_EQ(state.values().scale, 128);
}

TEST(ScaleLaw, an_update_between_forward_and_backward_is_an_error) {
  ScaleState state({128, 0, 1, 0});
  state.place(at::kCPU);
  const auto weight = at::ones({}).requires_grad_();
  const auto scaled = weight * state.scale();
  state.advance(at::zeros({}), law_of(2, 0.5, 1));
  EXPECT_THROW(scaled.backward(), c10::Error);
}

TEST(ScaleLaw, other_devices_are_refused) {
  ScaleState state({128, 0, 1, 0});
  EXPECT_THROW(state.place(at::kMeta), InputError);
  EXPECT_FALSE(state.placed());
}

}  // namespace
}  // namespace lockstep::amp
