// SPDX-License-Identifier: Apache-2.0
// What went wrong with loss scales on several ranks in other systems. The number of a trial is its name.
#include <gtest/gtest.h>

#include "amp/amp_testing.h"
#include "amp/replicas.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/launch.h"

namespace lockstep::amp {
namespace {

using namespace testing;
using torch::optim::Adam;

std::string text_of(const GradScaler& scaler) {
  std::string text;
  for (const auto& [key, value] : scaler.state_dict()) {
    text += key + "=" + std::to_string(value) + " ";
  }
  return text;
}

// D5: will scales stay equal when a micro-batch that is not reduced overflows on one rank?
TEST(Trials, D5_an_overflow_in_a_quiet_micro_batch_reaches_all_ranks_with_the_reduction) {
  run_ranks(2, [](World& world) {
    const auto net = std::make_shared<Scalar::Net>();
    DistributedDataParallel ddp(net, world);
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    GradScaler scaler({.init_scale = 4, .growth_interval = 2});
    const auto backward = [&](float gradient) { scaler.scale(ddp.forward(at::full({1}, gradient))).backward(); };
    for (int window = 0; window < 4; ++window) {
      optimizer.zero_grad();
      {
        const auto quiet = ddp.no_sync();
        backward(window == 1 && world.rank() == 1 ? kInf : 0.25f);
      }
      backward(world.rank() == 0 ? 0.25f : 0.75f);
      EXPECT_EQ(scaler.step(optimizer).skipped(), window == 1);
      scaler.update();
    }
    EXPECT_EQ(net->w.item<float>(), 1 - 3 * 0.75f);
    EXPECT_EQ(scaler.get_scale(), 4) << "halved once, doubled once";
    expect_equal_on_all(world, bytes_of(net->w) + text_of(scaler), "weight and scaler");
  });
}

// F1: overflow is judged on local gradients, and scales and step counts part.
TEST(Trials, F1_found_inf_is_the_same_on_all_ranks_and_so_are_scale_and_steps) {
  run_ranks(2, [](World& world) {
    GradScaler scaler({.init_scale = 1024, .growth_interval = 3, .world = world});
    const auto w = at::ones({1}).requires_grad_();
    Adam optimizer({w}, torch::optim::AdamOptions(0.1));
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      const bool poisoned = step % 4 == 1 && world.rank() == 1;
      scaler.scale((w * (poisoned ? kInf : 1.f)).sum()).backward();
      EXPECT_EQ(scaler.step(optimizer).skipped(), step % 4 == 1);
      scaler.update();
    }
    const auto& state = static_cast<const torch::optim::AdamParamState&>(*optimizer.state().begin()->second);
    EXPECT_EQ(state.step(), 7);
    expect_equal_on_all(world, bytes_of(w) + text_of(scaler), "weight and scaler");
  });
}

// F1 in a parameter that the wrapper leaves alone, under an opt level; without `world` the ranks would part.
TEST(Trials, F1_an_ignored_parameters_overflow_is_judged_together) {
  struct Net : torch::nn::Module {
    at::Tensor shared = register_parameter("shared", at::ones({1})), own = register_parameter("own", at::ones({1}));
  };
  for (const auto level : {OptLevel::O1, OptLevel::O2}) {
    run_ranks(2, [&](World& world) {
      const auto net = std::make_shared<Net>();
      Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.1));
      auto amp = initialize(*net, optimizer, level, {.world = world});
      const DataParallelBase ddp(ddp::tensors_of(*net), world, {.ignore = {"own"}});
      for (int step = 0; step < 10; ++step) {
        const float gradient = step % 3 == 1 && world.rank() == 1 ? kInf : 1.f;
        amp.scale((net->shared * 1 + net->own * gradient).to(at::kFloat).sum()).backward();
        EXPECT_EQ(amp.step(optimizer).skipped(), step % 3 == 1) << step;
      }
      EXPECT_EQ(amp.loss_scale(), 65536.0 / 8);
      expect_equal_on_all(world, bytes_of(net->shared) + bytes_of(net->own), "weights");
    });
  }
}

}  // namespace
}  // namespace lockstep::amp
