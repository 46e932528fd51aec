// SPDX-License-Identifier: Apache-2.0
#include "lockstep/replica/replica_check.h"

#include <c10/util/Logging.h>
#include <torch/serialize.h>

#include <array>
#include <mutex>
#include <sstream>

#include "lockstep/ddp/join.h"
#include "replica/training.h"

namespace lockstep {
namespace {

using test::mentions;
using test::run;
using test::Training;
using test::Victim;

// Cases O2: each kind of state, on rank 1, found at the next check and named.
TEST(ReplicaCheck, O2_every_kind_of_state_is_covered_and_named) {
  for (const auto kind : {StateKind::Parameter, StateKind::Master, StateKind::Moment, StateKind::Buffer,
                          StateKind::LossScale, StateKind::StepCount, StateKind::LearningRate}) {
    run(3, [&](World& world) {
      Training training(world, {.every = 2});
      training.train();
      training.check_.step();
      training.train();
      const auto victims = test::victims_of(training);
      const auto victim =
          *std::find_if(victims.begin(), victims.end(), [&](const Victim& v) { return v.kind == kind; });
      if (world.rank() == 1) {
        test::flip(victim, 0, 3);
      }
      try {
        training.check_.step();
        ADD_FAILURE() << to_string(kind) << " was missed";
      } catch (const ReplicaError& error) {
        EXPECT_EQ(error.report().step, 2);
        ASSERT_EQ(error.report().differing, 1);
        EXPECT_EQ(error.report().differences[0].kind, kind);
        EXPECT_EQ(error.report().differences[0].name, victim.name);
        EXPECT_EQ(error.report().differences[0].ranks, std::vector<int>{1});
        EXPECT_TRUE(mentions(error.what(), "replicas differ at step 2: " + std::string(to_string(kind))))
            << error.what();
      }
    });
  }
}

// Per-rank statistics differ by nature where nobody broadcasts them.
TEST(ReplicaCheck, O2_buffers_that_are_not_broadcast_are_no_alarm) {
  run(2, [](World& world) {
    Training training(world, {}, /*broadcast_buffers=*/false);
    for (int step = 0; step < 3; ++step) {
      training.train();
      EXPECT_NO_THROW(training.check_.step());
    }
    EXPECT_TRUE(mentions(training.ddp_.difference(), "buffer 1.running_mean")) << training.ddp_.difference();
  });
}

TEST(ReplicaCheck, buffers_are_covered_where_the_caller_says_so) {
  run(2, [](World& world) {
    Training training(world, {.buffers = CheckedBuffers::All}, /*broadcast_buffers=*/false);
    training.train();
    EXPECT_THROW(training.check_.step(), ReplicaError);
    EXPECT_EQ(training.check_.last_report()->differences[0].kind, StateKind::Buffer);
  });
}

TEST(ReplicaCheck, a_quiet_backward_leaves_buffers_apart_and_is_no_alarm) {
  run(2, [](World& world) {
    Training training(world, {});
    {
      const auto quiet = training.ddp_.no_sync();
      training.backward();
    }
    EXPECT_NO_THROW(training.check_.step());
    training.train();
    EXPECT_NO_THROW(training.check_.step());
    if (world.rank() == 1) {
      test::flip_bit(training.net_->buffers()[0], 0, 0);
    }
    EXPECT_THROW(training.check_.step(), ReplicaError);
  });
}

TEST(ReplicaCheck, a_join_that_a_rank_leaves_within_a_window_is_no_alarm) {
  run(3, [](World& world) {
    auto net = test::model_with_buffers(1);
    DistributedDataParallel ddp(net, world);
    ReplicaCheck check(world);
    check.attach(ddp);
    const auto window = [&](int passes) {
      for (int pass = 0; pass < passes; ++pass) {
        const auto quiet = pass == 1 ? std::nullopt : std::optional(ddp.no_sync());
        ddp.forward(test::random({2, 5}, static_cast<std::uint64_t>(world.rank()))).sum().backward();
      }
    };
    join(
        ddp, [&] { window(world.rank() == 1 ? 3 : 2); }, nullptr);
    EXPECT_NO_THROW(check.step());
    {
      const auto quiet = ddp.no_sync();
      ddp.forward(test::random({2, 5}, static_cast<std::uint64_t>(world.rank()))).sum().backward();
    }
    ddp.broadcast_now();
    EXPECT_NO_THROW(check.step());
    EXPECT_EQ(ddp.difference(), "");
  });
}

TEST(ReplicaCheck, a_skipped_step_is_no_alarm) {
  run(2, [](World& world) {
    Training training(world, {});
    training.train();
    training.backward();
    if (world.rank() == 1) {
      training.net_->parameters()[0].mutable_grad().fill_(INFINITY);
    }
    world.all_reduce(training.net_->parameters()[0].grad()).wait();
    training.amp_.step(training.optimizer_);
    EXPECT_NO_THROW(training.check_.step());
  });
}

TEST(ReplicaCheck, compares_every_nth_step_only) {
  run(2, [](World& world) {
    const auto t = at::full({2}, world.rank());
    ReplicaCheck check(world, {.every = 3});
    check.cover("t", [&] { return std::vector<at::Tensor>{t}; });
    check.step();
    check.step();
    EXPECT_THROW(check.step(), ReplicaError);
    EXPECT_EQ(check.last_report()->step, 3);
    ReplicaCheck never(world, {.every = 0});
    never.cover("t", [&] { return std::vector<at::Tensor>{t}; });
    const auto before = world.collectives_issued();
    never.step();
    EXPECT_EQ(world.collectives_issued(), before);
    EXPECT_THROW(ReplicaCheck(world, {.every = -1}), InputError);
  });
}

/// What a check finds where rank 1 has loaded the optimizer's file number `theirs` (0: none) and the others the second.
std::string found_after_load(World& world, std::size_t theirs) {
  Training training(world, {});
  std::array<std::stringstream, 3> files;
  for (std::size_t step = 1; step < files.size(); ++step) {
    training.train();
    torch::save(training.optimizer_, files[step]);
  }
  const auto number = world.rank() == 1 ? theirs : 2;
  if (number > 0) {
    torch::load(training.optimizer_, files[number]);
  }
  training.check_.compare();
  try {
    training.check_.verdict();
  } catch (const ReplicaError& error) {
    return error.what();
  }
  return {};
}

TEST(ReplicaCheck, after_a_load_names_the_rank_that_read_another_file_or_none) {
  run(3, [](World& world) {
    EXPECT_EQ(found_after_load(world, 2), "");
    const auto older = found_after_load(world, 1);
    EXPECT_TRUE(mentions(older, "step count 0.weight differs from rank 0 on rank 1 at []: 1 ")) << older;
    const auto none = found_after_load(world, 0);
    EXPECT_TRUE(mentions(none, "rank 1 holds")) << none;
  });
}

TEST(ReplicaCheck, one_collective_of_24_bytes_is_all_that_an_equal_step_costs) {
  run(2, [](World& world) {
    Training training(world, {});
    training.train();
    const auto before = world.collectives_issued();
    training.check_.step();
    EXPECT_EQ(world.collectives_issued(), before + 1);
  });
}

TEST(ReplicaCheck, the_likeliest_cause_comes_first) {
  run(3, [](World& world) {
    Training training(world, {.on_mismatch = OnMismatch::Warn});
    training.train();
    if (world.rank() == 2) {
      training.optimizer_.param_groups()[0].options().set_lr(0.02);
    }
    training.train();
    training.check_.step();
    const auto& report = *training.check_.last_report();
    EXPECT_EQ(report.differences[0].kind, StateKind::LearningRate);
    EXPECT_EQ(report.differences[0].text(),
              "learning rate group 0 differs from rank 0 on rank 2 at []: 0.02 (0x3f947ae147ae147b) instead of 0.01 "
              "(0x3f847ae147ae147b)");
    EXPECT_GT(report.differing, 4);
    EXPECT_LE(report.differences.size(), 8U);
  });
}

TEST(ReplicaCheck, ranks_with_different_sets_of_state_are_told_so) {
  run(2, [](World& world) {
    const auto t = at::zeros({2, 3});
    ReplicaCheck check(world, {.on_mismatch = OnMismatch::Resync});
    check.cover("t", [&] { return std::vector<at::Tensor>(world.rank() == 1 ? 2 : 1, t); });
    try {
      check.step();
      ADD_FAILURE();
    } catch (const ReplicaError& error) {
      EXPECT_TRUE(
          mentions(error.what(), "rank 1 holds tensor t.0, Float [2, 3] where rank 0 holds tensor t, Float [2, 3]"))
          << error.what();
      EXPECT_TRUE(mentions(error.what(), "(2 pieces of state against 1)")) << error.what();
    }
  });
}

TEST(ReplicaCheck, a_warning_lets_training_go_on) {
  run(2, [](World& world) {
    const auto t = at::full({2}, world.rank());
    ReplicaCheck check(world, {.on_mismatch = OnMismatch::Warn});
    check.cover("t", [&] { return std::vector<at::Tensor>{t}; });
    for (int step = 1; step < 3; ++step) {
      EXPECT_NO_THROW(check.step());
      EXPECT_EQ(check.last_report()->step, step);
    }
  });
}

TEST(ReplicaCheck, a_world_of_one_costs_nothing) {
  World world;
  int listed = 0;
  ReplicaCheck check(world);
  check.cover("t", [&] {
    ++listed;
    return std::vector<at::Tensor>{at::ones({2})};
  });
  check.step();
  EXPECT_EQ(listed, 0);
  EXPECT_FALSE(check.verdict().has_value());
  EXPECT_NE(check.digest(), 0U);
}

TEST(ReplicaCheck, the_digest_is_the_same_for_every_number_of_ranks_and_memory_format) {
  std::mutex mutex;
  std::vector<std::uint64_t> digests;
  for (const int ranks : {1, 2, 4}) {
    run(ranks, [&](World& world) {
      torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)), torch::nn::BatchNorm2d(4));
      test::fill_parameters(net->parameters(), 5);
      if (ranks == 4) {
        for (auto& parameter : net->parameters()) {
          const at::NoGradGuard no_grad;
          if (parameter.dim() == 4) {
            parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
          }
        }
      }
      DistributedDataParallel ddp(net, world);
      ReplicaCheck check(world);
      check.attach(ddp);
      const std::lock_guard lock(mutex);
      digests.push_back(check.digest());
      digests.push_back(ddp.digest());
    });
  }
  for (const auto digest : digests) {
    EXPECT_EQ(digest, digests[0]);
  }
}

}  // namespace
}  // namespace lockstep
