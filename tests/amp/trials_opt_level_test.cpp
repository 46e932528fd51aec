// SPDX-License-Identifier: Apache-2.0
// What went wrong with opt levels and masters in other systems. The number of a trial is its name.
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "amp/amp_testing.h"
#include "amp/one_weight.h"
#include "lockstep/amp/opt_level.h"

namespace lockstep::amp {
namespace {

using at::Tensor;
using testing::iterate;
using testing::One;
using testing::weight_of;
using torch::optim::Adam;
using torch::optim::SGD;

// H1: small updates round away in pure low precision.
TEST(Trials, H1_small_updates_are_kept_by_O2_and_lost_by_O3) {
  const auto run = [](OptLevel level, at::ScalarType low, double update) {
    One net(1.0f);
    SGD optimizer(net->parameters(), 1.0);
    auto amp = initialize(*net, optimizer, level, {.low_precision = low, .loss_scale = 1.0});
    for (int i = 0; i < 100; ++i) {
      iterate(amp, optimizer, net, update);
    }
    const auto masters = amp.masters();
    return std::pair(weight_of(net), masters.empty() ? 0 : masters[0].master[0].item<float>());
  };
  // The gradients themselves are rounded: 6e-4 is 6.0272e-4 in bf16, 1e-4 is 1.0002e-4 in fp16.
  const auto [bf16, bf16_master] = run(OptLevel::O2, at::kBFloat16, 6e-4);
  EXPECT_NEAR(bf16_master, .94, 3e-4);
  EXPECT_EQ(bf16, 0.94140625f);
  const auto [fp16, fp16_master] = run(OptLevel::O2, at::kHalf, 1e-4);
  EXPECT_NEAR(fp16_master, .99, 1e-5);
  EXPECT_EQ(fp16, 0.990234375f);
  EXPECT_EQ(run(OptLevel::O3, at::kBFloat16, 6e-4).first, 1.0f);
  EXPECT_EQ(run(OptLevel::O3, at::kHalf, 1e-4).first, 1.0f);
}

// H2: Adam's eps is 0 in fp16, so a zero gradient gives 0/0.
TEST(Trials, H2_a_zero_gradient_gives_a_zero_update_in_fp16) {
  for (const auto level : {OptLevel::O2, OptLevel::O3}) {
    One net(1.0f);
    Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));
    auto amp = initialize(*net, optimizer, level, {.low_precision = at::kHalf});
    iterate(amp, optimizer, net, 0);
    EXPECT_EQ(weight_of(net), 1.0f);
  }
}

// H5: weights are loaded, masters are not, and the first step writes the old masters back.
TEST(Trials, H5_a_write_at_any_place_of_a_step_is_kept) {
  enum Place { kBefore, kAfterForward, kAfterBackward, kAfterUnscale };
  const std::vector<std::function<void(Tensor&)>> writers{
      [](Tensor& w) { w.detach().fill_(5); },                // a copy under no_grad
      [](Tensor& w) { w.set_data(at::full_like(w, 5)); },    // another storage
      [](Tensor& w) { w.data_ptr<at::BFloat16>()[0] = 5; },  // a raw pointer
      [](Tensor& w) { w.variable_data().copy_(at::full({1}, 5)); },
  };
  for (const auto place : {kBefore, kAfterForward, kAfterBackward, kAfterUnscale}) {
    for (std::size_t i = 0; i < writers.size(); ++i) {
      One net(1.0f);
      SGD optimizer(net->parameters(), 1.0);
      auto amp = initialize(*net, optimizer, OptLevel::O2);
      iterate(amp, optimizer, net, 0.25);
      ASSERT_EQ(weight_of(net), 0.75f);
      const auto write_at = [&](Place now) { now == place ? writers[i](net->weight) : void(); };
      write_at(kBefore);
      const auto loss = amp.scale(amp.forward(net, at::zeros({1})));
      write_at(kAfterForward);
      try {
        loss.backward();
      } catch (const c10::Error&) {
        continue;  // autograd noticed the write itself
      }
      write_at(kAfterBackward);
      amp.unscale_(optimizer);
      write_at(kAfterUnscale);
      amp.step(optimizer);
      EXPECT_EQ(weight_of(net), 5.0f) << "place " << place << " writer " << i;
      EXPECT_EQ(amp.masters()[0].master[0].item<float>(), 5.0f);
    }
  }
}

}  // namespace
}  // namespace lockstep::amp
