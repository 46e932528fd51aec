// SPDX-License-Identifier: Apache-2.0
// Worlds, works and tensors end in any order, and nothing is left behind: no hang, no crash, no thread.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::failure_of;
using test::run;

std::ptrdiff_t threads_now() {
  namespace fs = std::filesystem;
  return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
}

// The first thread of a process may bring a helper of the runtime's to life (ThreadSanitizer's does).
std::ptrdiff_t threads_at_rest() {
  std::thread([] {}).join();
  return threads_now();
}

// Threads that were just joined may still be on the kernel's list for a moment.
void expect_threads(std::ptrdiff_t wanted) {
  for (int i = 0; i < 100 && threads_now() > wanted; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_LE(threads_now(), wanted);
}

class Lifetime : public testing::Test {
 protected:
  void SetUp() override {
    run(2, [](World& world) { world.barrier(); });
  }
  void TearDown() override { expect_threads(before_); }

 private:
  const std::ptrdiff_t before_ = threads_at_rest();
};

TEST_F(Lifetime, world_ends_while_work_is_kept) {
  std::vector<Work> works(2);
  std::vector<at::Tensor> tensors(2);
  run(2, [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    tensors[rank] = at::ones({1000});
    works[rank] = world.all_reduce(tensors[rank]);
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    works[rank].wait();
    EXPECT_TRUE(works[rank].done());
    EXPECT_EQ(tensors[rank][999].item<float>(), 2);
  }
}

TEST_F(Lifetime, work_is_dropped_unwaited) {
  run(3, [](World& world) {
    for (int i = 0; i < 20; ++i) {
      world.all_reduce(at::ones({10000}));
    }
    world.barrier();
  });
}

TEST_F(Lifetime, tensor_ends_before_its_work) {
  run(2, [](World& world) {
    std::vector<Work> works;
    for (int i = 0; i < 50; ++i) {
      works.push_back(world.all_reduce(at::ones({5000})));
    }
    for (auto& work : works) {
      work.wait();
    }
  });
}

TEST_F(Lifetime, handles_end_in_any_order) {
  run(2, [](World& world) {
    auto copy = std::make_unique<World>(world);
    auto part = std::make_unique<World>(copy->split(0));
    auto part_of_part = std::make_unique<World>(part->split(0));
    copy.reset();
    part_of_part->barrier();
    part.reset();
    part_of_part->barrier();
    world.barrier();
    part_of_part.reset();
    world.barrier();
  });
}

TEST_F(Lifetime, part_outlives_the_whole) {
  std::vector<std::unique_ptr<World>> parts(2);
  run(2,
      [&](World& world) { parts[static_cast<std::size_t>(world.rank())] = std::make_unique<World>(world.split(0)); });
  std::thread other([&] { parts[1]->barrier(), parts[1].reset(); });
  parts[0]->barrier();
  parts[0].reset();
  other.join();
}

TEST_F(Lifetime, exception_passes_works_in_flight_parts_and_copies) {
  const auto start = std::chrono::steady_clock::now();
  const auto failure = failure_of(3, [](World& world) {
    const auto copy = world;
    const auto part = world.split(0);
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) {
      works.push_back(part.all_reduce(at::ones({100000})));
    }
    if (world.rank() == 1) {
      throw std::runtime_error("fault");
    }
    works.push_back(world.all_reduce(at::ones({100000})));
    works.back().wait();
  });
  ASSERT_TRUE(failure);
  EXPECT_STREQ(failure->what(), "[rank 1] fault");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 8s);
}

TEST_F(Lifetime, last_handle_in_the_way_of_an_exception_tells_the_others) {
  const auto failure = failure_of(2, [](World& world) {
    if (world.rank() == 0) {
      try {
        const World last = std::move(world);
        world = World();
        throw std::runtime_error("caught by the user");
      } catch (const std::runtime_error&) {
      }
      return;
    }
    world.barrier();
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->origin(), 0);
  EXPECT_STREQ(failure->what(), "[world] rank 0 left while an exception was under way");
}

TEST_F(Lifetime, leaving_with_a_collective_that_nobody_joins_is_told) {
  std::string seen;
  const auto start = std::chrono::steady_clock::now();
  run(2, [&](World& world) {
    if (world.rank() == 0) {
      world.all_reduce(at::ones({10}), ReduceOp::Sum, {"unjoined"});
      return;
    }
    try {
      while (true) {
        world.check();
        std::this_thread::sleep_for(5ms);
      }
    } catch (const WorldError& error) {
      seen = error.what();
    }
  });
  EXPECT_EQ(seen, "[world] rank 0 left while all_reduce #1 'unjoined' (10 Float, sum) was not done");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 8s);
}

TEST_F(Lifetime, caught_failure_lets_ranks_return) {
  run(3, [](World& world) {
    world.barrier();  // a world that fails before it is whole fails in the others' constructors
    if (world.rank() == 2) {
      world.fail("stop");
    }
    EXPECT_THROW(
        while (true) { world.barrier(); }, WorldError);
  });
}

TEST_F(Lifetime, many_worlds_one_after_another) {
  for (int i = 0; i < 10; ++i) {
    run(2, [](World& world) { world.barrier(); });
  }
}

TEST_F(Lifetime, worlds_inside_worlds) {
  run(2, [](World& outer) {
    run(2, [](World& inner) { inner.barrier(); });
    outer.barrier();
  });
}

}  // namespace
}  // namespace lockstep
