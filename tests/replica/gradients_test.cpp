// SPDX-License-Identifier: Apache-2.0
// Hashes of gradients before and after their reductions: who is to blame when replicas part.
#include <mutex>

#include "lockstep/ddp/comm_hook.h"
#include "replica/training.h"

namespace lockstep {
namespace {

using test::mentions;
using test::run;
using test::Training;

constexpr std::uint32_t kFaultyStep = 2;

/// The plain all-reduce, which gives rank 1 one wrong bit in one bucket of one step.
CommHook faulty_all_reduce(const World& world) {
  return [world, plain = all_reduce_hook(world)](const GradientBucket& bucket) -> std::function<void()> {
    auto finish = plain(bucket);
    return [world, bucket, finish] {
      finish();
      if (world.rank() == 1 && bucket.step == kFaultyStep && bucket.index == 0) {
        test::flip_bit(bucket.buffer, 1, 2);
      }
    };
  };
}

bool names_gradients(const ReplicaReport& report) {
  return std::any_of(report.differences.begin(), report.differences.end(),
                     [](const auto& difference) { return difference.kind == StateKind::Gradient; });
}

TEST(GradientHashes, name_a_reduction_that_gave_ranks_different_sums_however_late) {
  for (const int ranks : {2, 3, 4}) {
    run(ranks, [](World& world) {
      Training training(world, {.every = 6, .gradients = true});
      training.ddp_.register_comm_hook(faulty_all_reduce(world));
      for (int step = 1; step < 6; ++step) {
        training.train();
        EXPECT_NO_THROW(training.check_.step());
      }
      training.train();
      try {
        training.check_.step();
        ADD_FAILURE() << "missed";
      } catch (const ReplicaError& error) {
        EXPECT_EQ(error.report().differences[0].kind, StateKind::Gradient);
        EXPECT_EQ(error.report().differences[0].ranks, std::vector<int>{1});
        EXPECT_EQ(error.report().own_gradients.size(), static_cast<std::size_t>(world.size()));
        EXPECT_TRUE(mentions(error.what(), "gradient bucket 0")) << error.what();
        EXPECT_TRUE(mentions(error.what(), "reductions did not give all ranks the same")) << error.what();
      }
    });
  }
}

TEST(GradientHashes, clear_the_reductions_where_a_rank_has_changed_its_own_state) {
  run(3, [](World& world) {
    Training training(world, {.gradients = true});
    training.train();
    EXPECT_NO_THROW(training.check_.step());
    if (world.rank() == 2) {
      test::flip_bit(training.amp_.masters()[0].master, 0, 20);
    }
    training.train();
    try {
      training.check_.step();
      ADD_FAILURE() << "missed";
    } catch (const ReplicaError& error) {
      EXPECT_FALSE(names_gradients(error.report())) << error.what();
      EXPECT_TRUE(mentions(error.what(), "reductions gave all ranks the same gradients")) << error.what();
    }
  });
}

/// This rank's hash after three steps, in the last of which one of rank 1's gradients may have a wrong bit.
std::uint64_t own_hash(World& world, bool faulty) {
  Training training(world, {.gradients = true});
  training.train();
  training.train();
  if (faulty && world.rank() == 1) {
    training.net_->parameters()[0].register_hook([](const at::Tensor& gradient) {
      auto wrong = gradient.clone();
      test::flip_bit(wrong, 0, 1);
      return wrong;
    });
  }
  training.train();
  EXPECT_NO_THROW(training.check_.step());  // all ranks got the same sum, a wrong one
  return training.check_.own_gradient_digest();
}

TEST(GradientHashes, show_the_rank_that_computes_wrongly_when_a_training_is_repeated) {
  run(3, [](World& world) {
    const auto first = own_hash(world, false);
    EXPECT_NE(first, 0U);
    EXPECT_EQ(own_hash(world, false), first);
    EXPECT_EQ(own_hash(world, true) != first, world.rank() == 1);
  });
}

TEST(GradientHashes, of_ranks_with_different_batches_differ_and_are_no_alarm) {
  run(4, [](World& world) {
    Training training(world, {.gradients = true});
    training.ddp_.register_comm_hook(compress_hook(world, at::kBFloat16));
    for (int step = 0; step < 3; ++step) {
      training.train();
      EXPECT_NO_THROW(training.check_.step());
    }
    const auto mine = std::to_string(training.check_.own_gradient_digest());
    const auto all = world.all_gather_text(mine);
    EXPECT_EQ(std::count(all.begin(), all.end(), mine), 1);
  });
}

TEST(GradientHashes, of_quiet_passes_are_not_taken) {
  run(2, [](World& world) {
    Training training(world, {.gradients = true});
    training.train();
    const auto before = training.check_.own_gradient_digest();
    {
      const auto quiet = training.ddp_.no_sync();
      training.backward();
    }
    EXPECT_EQ(training.check_.own_gradient_digest(), before);
    training.train();
    EXPECT_NE(training.check_.own_gradient_digest(), before);
  });
}

TEST(GradientHashes, are_equal_again_after_a_resync) {
  run(3, [](World& world) {
    Training training(world, {.on_mismatch = OnMismatch::Resync, .gradients = true});
    training.ddp_.register_comm_hook(faulty_all_reduce(world));
    for (std::uint32_t step = 0; step < kFaultyStep + 3; ++step) {
      training.train();
      training.check_.step();
      EXPECT_EQ(training.check_.last_report().has_value(), step >= kFaultyStep);
    }
    EXPECT_EQ(training.check_.last_report()->step, kFaultyStep + 1);
  });
}

/// Kinds that are likelier causes come first in a report, which names eight differences.
TEST(GradientHashes, blame_a_reduction_that_the_report_has_no_room_to_name) {
  run(2, [](World& world) {
    Training training(world, {.every = 4, .gradients = true});
    training.ddp_.register_comm_hook(faulty_all_reduce(world));
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (int i = 0; i < 9; ++i) {
      groups.emplace_back(std::vector<at::Tensor>{at::zeros({1})},
                          std::make_unique<torch::optim::SGDOptions>(0.1 + world.rank()));
    }
    torch::optim::SGD nine_rates(groups, torch::optim::SGDOptions(0.1));
    training.check_.attach(nine_rates);
    for (int step = 1; step < 4; ++step) {
      training.train();
      training.check_.step();
    }
    training.train();
    EXPECT_THROW(training.check_.step(), ReplicaError);
    const auto report = training.check_.last_report();
    EXPECT_TRUE(report->reductions_parted);
    EXPECT_TRUE(mentions(report->text(), "reductions did not give all ranks the same")) << report->text();
  });
}

TEST(GradientHashes, say_nothing_where_lists_differ_or_no_wrapper_is_attached) {
  run(2, [](World& world) {
    Training training(world, {.on_mismatch = OnMismatch::Warn, .gradients = world.rank() == 0});
    training.train();
    training.check_.step();
    ASSERT_TRUE(training.check_.last_report().has_value());
    EXPECT_FALSE(training.check_.last_report()->structure.empty());
    EXPECT_TRUE(training.check_.last_report()->own_gradients.empty());

    auto net = test::model_with_buffers(static_cast<std::uint64_t>(world.rank()));
    ReplicaCheck check(world, {.on_mismatch = OnMismatch::Warn, .gradients = true});
    check.attach(*net);
    check.step();
    ASSERT_TRUE(check.last_report().has_value());
    EXPECT_TRUE(check.last_report()->own_gradients.empty());
  });
}

TEST(GradientHashes, are_not_taken_unasked) {
  run(2, [](World& world) {
    Training training(world, {});
    training.train();
    EXPECT_EQ(training.check_.own_gradient_digest(), 0U);
  });
}

}  // namespace
}  // namespace lockstep
