// SPDX-License-Identifier: Apache-2.0
// One rank fails, leaves or calls something else: every rank ends soon, and with the same words.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::failure_of;
using test::quick_options;

// What each rank saw, by rank.
class Seen {
 public:
  explicit Seen(int ranks) : texts_(static_cast<std::size_t>(ranks)) {}

  /// Runs the body; keeps the first line of its WorldError and rethrows it.
  void record(const World& world, const std::function<void()>& body) {
    try {
      body();
    } catch (const WorldError& error) {
      const std::string text = error.what();
      texts_[static_cast<std::size_t>(world.rank())] = text.substr(0, text.find('\n'));
      throw;
    }
  }

  const std::string& of(int rank) const { return texts_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<std::string> texts_;
};

void train(const World& world, int first, int last) {
  const auto tensor = at::ones({1000});
  for (int step = first; step < last; ++step) {
    world.all_reduce(tensor, ReduceOp::Average, {"gradients", static_cast<std::uint32_t>(step)}).wait();
  }
}

void train_for_ever(const World& world) {
  train(world, 0, 1 << 30);
}

class Failure : public testing::TestWithParam<int> {};

TEST_P(Failure, of_one_rank_reaches_all_in_its_own_words) {
  const int ranks = GetParam();
  Seen seen(ranks);
  const auto failure = failure_of(ranks, [&](World& world) {
    seen.record(world, [&] {
      train(world, 0, 3);
      if (world.rank() == 1) {
        throw std::runtime_error("the solver diverged");
      }
      train_for_ever(world);
    });
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->origin(), 1);
  EXPECT_STREQ(failure->what(), "[rank 1] the solver diverged");
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(seen.of(rank), rank == 1 ? "" : "[rank 1] the solver diverged");
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Failure, testing::Values(2, 3, 4));

TEST(Failures, fifty_in_a_row_end_in_time) {
  const auto start = std::chrono::steady_clock::now();
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto failure = failure_of(3, [&](World& world) {
      const auto large = at::ones({100000});
      for (int step = 0; step < 1 << 30; ++step) {
        if (world.rank() == repeat % 3 && step == repeat % 7) {
          throw std::runtime_error("fault");
        }
        auto work = world.all_reduce(large, ReduceOp::Sum, {"large"});
        train(world, 0, 1);
        work.wait();
      }
    });
    ASSERT_TRUE(failure);
    EXPECT_EQ(std::string(failure->what()), c10::str("[rank ", repeat % 3, "] fault"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 50 * 4s);
}

TEST(Failures, torch_errors_are_told_without_their_stack) {
  const auto failure = failure_of(2, [](World& world) {
    if (world.rank() == 0) {
      at::ones({2, 3}).matmul(at::ones({2, 3}));
    }
    world.barrier();
  });
  ASSERT_TRUE(failure);
  const std::string text = failure->what();
  EXPECT_EQ(text.rfind("[rank 0] ", 0), 0) << text;
  EXPECT_NE(text.find("mat1 and mat2 shapes cannot be multiplied"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(Failures, what_is_thrown_may_be_anything) {
  const auto failure = failure_of(2, [](World& world) {
    if (world.rank() == 0) {
      throw 42;
    }
    world.barrier();
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->origin(), 0);
}

TEST(Failures, waiter_is_told_what_it_was_in) {
  std::string seen;
  failure_of(2, [&](World& world) {
    if (world.rank() == 1) {
      std::this_thread::sleep_for(50ms);
      throw std::runtime_error("fault");
    }
    try {
      world.all_reduce(at::ones({4}), ReduceOp::Sum, {"bucket 3", 7}).wait();
    } catch (const WorldError& error) {
      seen = error.what();
    }
  });
  EXPECT_EQ(seen, "[rank 1] fault\n  rank 0 was in all_reduce #1 'bucket 3' (4 Float, sum, tag 7)");
}

TEST(Failures, fail_returns_the_words_that_won) {
  std::vector<std::string> won(3);
  const auto failure = failure_of(3, [&](World& world) {
    won[static_cast<std::size_t>(world.rank())] = world.fail(c10::str("words of rank ", world.rank()));
    EXPECT_THROW(world.check(), WorldError);
    EXPECT_THROW(world.barrier(), WorldError);
    EXPECT_EQ(world.fail("again"), won[static_cast<std::size_t>(world.rank())]);
    world.check();
  });
  ASSERT_TRUE(failure);
  for (const auto& words : won) {
    EXPECT_EQ(words, failure->what());
  }
}

TEST(Failures, failed_world_of_one_stays_failed) {
  const World world;
  EXPECT_NO_THROW(world.check());
  EXPECT_EQ(world.fail("words"), "words");
  EXPECT_THROW(world.check(), WorldError);
  EXPECT_THROW(world.all_reduce(at::ones({1})), WorldError);
}

TEST(Failures, before_the_world_is_whole_reaches_those_who_wait_in_it) {
  Seen seen(3);
  std::atomic<int> others{0};
  const auto failure = failure_of(3, [&](World& world) {
    if (world.rank() == 2) {
      while (others < 2) {  // earlier, they would be told on their way in
        std::this_thread::yield();
      }
      throw std::runtime_error("no data on this machine");
    }
    ++others;
    seen.record(world, [&] { world.split(0); });
  });
  ASSERT_TRUE(failure);
  EXPECT_STREQ(failure->what(), "[rank 2] no data on this machine");
  EXPECT_EQ(seen.of(0), failure->what());
  EXPECT_EQ(seen.of(1), failure->what());
}

// ---- Different collectives never meet: nothing is added up that does not belong together, and all ranks end.

struct Difference {
  const char* name;
  std::function<Work(const World&, const at::Tensor&)> of_rank_0;
  std::function<Work(const World&, const at::Tensor&)> of_others;
  const char* words;
};

class Different : public testing::TestWithParam<Difference> {};

TEST_P(Different, collectives_never_pair_and_are_both_shown) {
  Seen seen(3);
  const auto start = std::chrono::steady_clock::now();
  const auto failure = failure_of(3, [&](World& world) {
    train(world, 0, 2);
    const auto tensor = at::full({8}, 5);
    seen.record(world, [&] {
      (world.rank() == 0 ? GetParam().of_rank_0 : GetParam().of_others)(world, tensor).wait();
      train(world, 2, 4);
    });
  });
  ASSERT_TRUE(failure);
  const std::string text = failure->what();
  EXPECT_EQ(text.rfind("[world] ranks called different collectives: rank 0 is in ", 0), 0) << text;
  EXPECT_NE(text.find(GetParam().words), std::string::npos) << text;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(seen.of(rank), text);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 15s);
}

Work sum(const World& world, const at::Tensor& tensor, const CallLabel& label = {}) {
  return world.all_reduce(tensor, ReduceOp::Sum, label);
}

std::vector<Difference> differences() {
  using W = const World&;
  using T = const at::Tensor&;
  return {
      {"tag",
       [](W w, T t) {
         return sum(w, t, {"a", 1});
       },
       [](W w, T t) {
         return sum(w, t, {"a", 2});
       },
       "tag 2"},
      {"size", [](W w, T t) { return sum(w, t); }, [](W w, T t) { return sum(w, t.narrow(0, 0, 7)); }, "(7 Long, sum)"},
      {"dtype_of_the_same_size", [](W w, T t) { return sum(w, t); },
       [](W w, T t) { return sum(w, t.view(at::kDouble)); }, "(8 Double, sum)"},
      {"reduce_op", [](W w, T t) { return sum(w, t); }, [](W w, T t) { return w.all_reduce(t, ReduceOp::Max); },
       "(8 Long, max)"},
      {"operation", [](W w, T t) { return sum(w, t); }, [](W w, T t) { return w.broadcast(t, 0); }, "broadcast"},
      {"root", [](W w, T t) { return w.broadcast(t, 0); }, [](W w, T t) { return w.broadcast(t, 1); }, "root 1"},
      {"empty", [](W w, T t) { return sum(w, t); }, [](W w, T t) { return sum(w, t.narrow(0, 0, 0)); },
       "another collective as #3"}};
}

INSTANTIATE_TEST_SUITE_P(Kinds, Different, testing::ValuesIn(differences()),
                         [](const auto& param) { return param.param.name; });

TEST(Failures, differing_names_alone_do_no_harm) {
  test::run(2, [](World& world) {
    const auto tensor = at::ones({2});
    world.all_reduce(tensor, ReduceOp::Sum, {c10::str("name on rank ", world.rank())}).wait();
    EXPECT_EQ(tensor[0].item<float>(), 2);
  });
}

TEST(Failures, rank_that_skips_a_step_is_caught) {
  const auto failure = failure_of(3, [](World& world) {
    train(world, 0, 5);
    train(world, world.rank() == 2 ? 6 : 5, 20);
  });
  ASSERT_TRUE(failure);
  EXPECT_NE(std::string(failure->what())
                .find("tag 5), rank 2 is in all_reduce #6 'gradients' (1000 Float, average, "
                      "tag 6)"),
            std::string::npos)
      << failure->what();
}

TEST(Failures, rank_that_leaves_early_is_named) {
  const auto failure = failure_of(3, [](World& world) { train(world, 0, world.rank() == 1 ? 5 : 50); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->origin(), 1);
  EXPECT_EQ(std::string(failure->what()).rfind("[world] rank 1 left after 5 collectives while rank ", 0), 0)
      << failure->what();
}

TEST(Failures, rank_that_does_not_come_is_named_after_the_timeout) {
  auto options = quick_options();
  options.timeout = 1s;
  const auto failure = failure_of(
      3,
      [](World& world) {
        train(world, 0, 2);
        if (world.rank() == 2) {
          while (true) {
            world.check();
            std::this_thread::sleep_for(10ms);
          }
        }
        train(world, 2, 3);
      },
      options);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->origin(), 2);
  const std::string text = failure->what();
  EXPECT_NE(text.find("took more than 1 s on rank "), std::string::npos) << text;
  EXPECT_NE(text.find("rank 2 has not called it (its last was all_reduce #2 'gradients'"), std::string::npos) << text;
}

TEST(Failures, error_in_a_part_of_the_world_reaches_the_other_part) {
  Seen seen(4);
  const auto failure = failure_of(4, [&](World& world) {
    const auto part = world.split(world.rank() % 2);
    train(part, 0, 3);
    seen.record(world, [&] {
      if (world.rank() == 3) {
        throw std::runtime_error("fault in the odd part");
      }
      train_for_ever(part);
    });
  });
  ASSERT_TRUE(failure);
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(seen.of(rank), "[rank 3] fault in the odd part");
  }
}

TEST(Failures, own_words_count_more_than_a_part_that_broke_on_the_way) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto failure = failure_of(3, [](World& world) {
      const auto part = world.split(0);
      train(part, 0, 3);
      if (world.rank() == 0) {
        auto pending = part.all_reduce(at::ones({1000}), ReduceOp::Average, {"gradients", 3});
        throw std::runtime_error("fault with a part in scope");
      }
      train(part, 3, 1 << 30);
    });
    ASSERT_TRUE(failure);
    EXPECT_STREQ(failure->what(), "[rank 0] fault with a part in scope");
  }
}

}  // namespace
}  // namespace lockstep
