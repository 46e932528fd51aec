// SPDX-License-Identifier: Apache-2.0
// Captured steps beside eager ones, on one CUDA device. The models are deterministic: bits must be equal.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/nn/modules/dropout.h>

#include <utility>

#include "lockstep/amp/opt_level.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/error.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/replica/replica_check.h"
#include "lockstep/step/train_step.h"
#include "step/support.h"

namespace lockstep {
namespace {

using namespace lockstep::test;
using torch::optim::AdamWOptions;

const c10::Device kCuda(c10::kCUDA, 0);

at::Tensor on_gpu(const at::Tensor& tensor) {
  return tensor.to(kCuda);
}

struct Setting {
  amp::OptLevel level = amp::OptLevel::O2;
  TrainStepOptions options = {};
  bool wrapped = true;
  bool arena = true;  // gradients go through buckets, as in a world of several, else they stay where they are
  bool scheduled = false;
  double loss_scale = 0;  // 0: dynamic
};

/// A model with everything that trains it.
struct Training {
  Mlp net{1, 64};
  std::unique_ptr<optim::AdamW> optimizer;
  std::optional<amp::Amp> mixed;
  std::optional<DistributedDataParallel<Mlp>> ddp;
  std::optional<optim::LrScheduler> schedule;
  std::optional<TrainStep> step;
  double drop = 0;

  explicit Training(const Setting& setting, double dropout = 0) : drop(dropout) {
    net.to(kCuda);
    optimizer =
        std::make_unique<optim::AdamW>(net.parameters(), AdamWOptions(0.01), optim::FusedOptions{.capturable = true});
    amp::AmpOptions amp_options;
    if (setting.loss_scale > 0) {
      amp_options.loss_scale = amp::LossScale(setting.loss_scale);
    }
    mixed.emplace(amp::initialize(net, *optimizer, setting.level, amp_options));
    if (setting.wrapped) {
      ddp.emplace(net, World());
      if (setting.arena) {
        ddp->register_comm_hook(all_reduce_hook(World()));
      }
    }
    if (setting.scheduled) {
      schedule.emplace(*optimizer, optim::exponential_lr(0.9));
    }
    step.emplace(
        TrainStepParts{.optimizer = *optimizer,
                       .ddp = setting.wrapped ? &*ddp : nullptr,
                       .amp = &*mixed,
                       .schedule = setting.scheduled ? &*schedule : nullptr},
        [this](const TrainStep::Inputs& in) {
          auto output = mixed->forward(net, in[0]);
          return squared_error(drop > 0 ? at::dropout(output, drop, true) : output, in[1]);
        },
        setting.options);
  }

  TrainStepResult feed(int index, std::int64_t rows = 6, const MicroBatch& micro = {}) {
    return (*step)({on_gpu(inputs_of(index, rows)), on_gpu(targets_of(index, rows))}, micro);
  }
  std::vector<at::Tensor> values() { return values_of(net.parameters()); }
};

Setting captured(Setting setting) {
  setting.options.capture = true;
  setting.options.require_capture = true;
  return setting;
}

void expect_same_training(const Setting& setting, int calls) {
  Training eager(setting);
  Training graph(captured(setting));
  for (int i = 0; i < calls; ++i) {
    const auto wanted = eager.feed(i).loss().item<float>();
    EXPECT_EQ(graph.feed(i).loss().item<float>(), wanted) << "call " << i;
  }
  EXPECT_EQ(graph.step->describe(), "captured, 1 input shape");
  expect_equal(graph.values(), eager.values(), amp::to_string(setting.level));
  EXPECT_EQ(graph.mixed->loss_scale(), eager.mixed->loss_scale());
}

TEST(Capture, replays_equal_eager_steps_bit_for_bit_at_every_level) {
  for (const auto level : {amp::OptLevel::O0, amp::OptLevel::O1, amp::OptLevel::O2, amp::OptLevel::O3}) {
    expect_same_training({.level = level}, 20);
    expect_same_training({.level = level, .arena = false}, 12);
    expect_same_training({.level = level, .options = {.clip_norm = 0.1}, .wrapped = false}, 12);
  }
}

TEST(Capture, windows_are_captured_place_by_place) {
  for (const int accumulate : {2, 3, 5}) {
    for (const bool arena : {true, false}) {
      expect_same_training({.options = {.accumulate = accumulate, .clip_norm = 0.5}, .arena = arena}, 8 * accumulate);
    }
  }
}

TEST(Capture, hashes_of_gradients_run_on_in_replays) {
  const Setting setting{.options = {.accumulate = 2}};
  Training eager(setting);
  Training graph(captured(setting));
  ReplicaCheck of_eager(World(), {.gradients = true});
  ReplicaCheck of_graph(World(), {.gradients = true});
  of_eager.attach(*eager.ddp);
  of_graph.attach(*graph.ddp);
  std::uint64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    eager.feed(i);
    graph.feed(i);
    if (i % 2 == 1) {
      EXPECT_EQ(of_graph.own_gradient_digest(), of_eager.own_gradient_digest()) << i;
      EXPECT_NE(of_graph.own_gradient_digest(), std::exchange(last, of_graph.own_gradient_digest())) << i;
    }
  }
}

TEST(Capture, short_windows_end_eagerly_with_the_gradients_of_the_replays) {
  for (const bool said_in_advance : {false, true}) {
    const Setting setting{.options = {.accumulate = 4}};
    Training eager(setting);
    Training graph(captured(setting));
    for (int i = 0; i < 22; ++i) {
      const MicroBatch micro{.last = said_in_advance && i == 21};
      eager.feed(i, 6, micro);
      graph.feed(i, 6, micro);
    }
    EXPECT_EQ(eager.step->finish().ended(), !said_in_advance);
    EXPECT_EQ(graph.step->finish().ended(), !said_in_advance);
    for (int i = 22; i < 30; ++i) {
      eager.feed(i);
      graph.feed(i);
    }
    expect_equal(graph.values(), eager.values(), "weights");
  }
}

TEST(Capture, an_overflow_in_a_replay_is_left_out_and_lowers_the_scale) {
  Training graph(captured({}));
  for (int i = 0; i < 6; ++i) {
    graph.feed(i);
  }
  const auto before = graph.values();
  const auto scale = graph.mixed->loss_scale();
  const auto bad = on_gpu(at::full({6, 4}, std::numeric_limits<float>::infinity()));
  EXPECT_TRUE((*graph.step)({bad, on_gpu(targets_of(0))}).skipped());
  expect_equal(graph.values(), before, "weights");
  EXPECT_EQ(graph.mixed->loss_scale(), scale / 2);
  EXPECT_FALSE(graph.feed(7).skipped());
  EXPECT_EQ(graph.mixed->loss_scale(), scale / 2);
}

TEST(Capture, replays_that_are_all_left_out_end_in_an_error) {
  Training graph(captured({}));
  for (int i = 0; i < 6; ++i) {
    graph.feed(i);
  }
  const auto bad = on_gpu(at::full({6, 4}, std::numeric_limits<float>::quiet_NaN()));
  EXPECT_THROW(
      {
        for (int i = 0; i < 200; ++i) {
          (*graph.step)({bad, on_gpu(targets_of(0))});
        }
      },
      Error);
}

TEST(Capture, learning_rates_and_schedules_act_between_replays) {
  expect_same_training({.scheduled = true}, 15);
  Training graph(captured({}));
  for (int i = 0; i < 6; ++i) {
    graph.feed(i);
  }
  const auto before = graph.values();
  graph.optimizer->param_groups()[0].options().set_lr(0);
  graph.feed(6);
  expect_equal(graph.values(), before, "weights at a learning rate of 0");
}

TEST(Capture, weights_that_are_written_between_replays_are_used) {
  Training eager({});
  Training graph(captured({}));
  for (int i = 0; i < 16; ++i) {
    if (i == 9) {
      const at::NoGradGuard no_grad;
      for (auto* training : {&eager, &graph}) {
        training->net.first->weight.fill_(0.25);
      }
    }
    eager.feed(i);
    graph.feed(i);
  }
  expect_equal(graph.values(), eager.values(), "weights");
}

TEST(Capture, each_shape_gets_its_graph_up_to_the_limit) {
  const Setting setting{.options = {.max_shapes = 2}};
  Training eager(setting);
  Training graph(captured(setting));
  for (int i = 0; i < 18; ++i) {
    const std::int64_t rows = 4 + i % 3;
    EXPECT_EQ(graph.feed(i, rows).loss().item<float>(), eager.feed(i, rows).loss().item<float>());
  }
  EXPECT_EQ(graph.step->describe(), "captured, 2 input shapes");
  expect_equal(graph.values(), eager.values(), "weights");
}

TEST(Capture, random_numbers_go_on_as_in_eager_steps) {
  const auto train = [](const Setting& setting) {
    auto generator = at::cuda::detail::getDefaultCUDAGenerator(0);
    generator.set_current_seed(7);
    Training training(setting, 0.5);
    std::vector<float> losses;
    for (int i = 0; i < 12; ++i) {
      losses.push_back(training.feed(0).loss().item<float>());
    }
    return losses;
  };
  const auto eager = train({});
  const auto graph = train(captured({}));
  EXPECT_EQ(graph, eager);
  EXPECT_NE(graph[8], graph[9]);
}

TEST(Capture, a_loss_that_reads_the_device_stays_eager_with_the_reason) {
  Training training({.wrapped = false});
  TrainStep step({.optimizer = *training.optimizer, .amp = &*training.mixed},
                 [&](const TrainStep::Inputs& in) {
                   const auto loss = squared_error(training.mixed->forward(training.net, in[0]), in[1]);
                   return loss * (loss.item<float>() > 0 ? 1 : 2);
                 },
                 {.capture = true});
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(step({on_gpu(inputs_of(i)), on_gpu(targets_of(i))}).ended());
  }
  EXPECT_EQ(step.describe().find("eager: recording failed: "), 0U) << step.describe();
  EXPECT_FALSE(training.feed(9).skipped());
}

TEST(Capture, P1_wrapped_and_warmed_up_on_any_stream) {
  const Setting setting{};
  Training eager(setting);
  Training graph(captured(setting));
  for (int i = 0; i < 12; ++i) {
    // Some other stream each time, the default one among them.
    const c10::cuda::CUDAStreamGuard guard(i % 2 == 0 ? c10::cuda::getStreamFromPool()
                                                      : c10::cuda::getDefaultCUDAStream());
    graph.feed(i);
    c10::cuda::device_synchronize();
  }
  for (int i = 0; i < 12; ++i) {
    eager.feed(i);
  }
  expect_equal(graph.values(), eager.values(), "weights");
}

}  // namespace
}  // namespace lockstep
