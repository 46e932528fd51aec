// SPDX-License-Identifier: Apache-2.0
// What a world says of itself, what it refuses, its parts, and how it is made.
#include "lockstep/comm/world.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <future>
#include <thread>

#include "support/process_ranks.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::quick_options;
using test::run;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(WorldOfOne, is_the_default_and_does_nothing) {
  const World world;
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.local_rank(), 0);
  EXPECT_EQ(world.local_size(), 1);
  EXPECT_EQ(world.device(), c10::Device(c10::kCPU));
  EXPECT_EQ(world.backend(), BackendKind::Self);
  const auto tensor = at::arange(5.0);
  world.all_reduce(tensor, ReduceOp::Average).wait();
  world.broadcast(tensor).wait();
  world.barrier();
  EXPECT_TRUE(at::equal(tensor, at::arange(5.0)));
  EXPECT_EQ(world.all_gather_text("text"), std::vector<std::string>{"text"});
  EXPECT_EQ(world.split(0).size(), 1);
  EXPECT_GE(world.collectives_issued(), 3);
}

class Inputs : public testing::TestWithParam<int> {};

TEST_P(Inputs, that_cannot_work_are_refused_and_nothing_is_sent) {
  run(GetParam(), [](World& world) {
    const auto n = world.size();
    const auto ok = at::ones({4, 6});
    const auto refused = [&](const char* words, const std::function<void()>& call) {
      const auto text = refusal(call);
      EXPECT_NE(text.find(words), std::string::npos) << text;
    };
    refused("undefined", [&] { world.all_reduce(at::Tensor()); });
    refused("gaps or overlaps", [&] { world.all_reduce(ok.narrow(1, 0, 3)); });
    refused("gaps or overlaps", [&] { world.broadcast(at::ones({1}).expand({3})); });
    refused("no plain memory", [&] { world.all_reduce(ok.to_sparse()); });
    refused("another device", [&] { world.all_reduce(at::ones({2}, at::kMeta)); });
    refused("'weights'", [&] { world.all_reduce(ok.narrow(1, 0, 3), ReduceOp::Sum, {"weights"}); });
    refused("cannot be reduced", [&] { world.all_reduce(ok.to(at::kShort)); });
    refused("have no order", [&] { world.all_reduce(ok.to(at::kComplexFloat), ReduceOp::Max); });
    refused("not a whole number", [&] { world.all_reduce(ok.to(at::kLong), ReduceOp::Average); });
    refused("resolve_conj", [&] { world.broadcast(at::ones({2}, at::kComplexFloat).conj()); });
    refused("no such root", [&] { world.broadcast(ok, n); });
    refused("no such root", [&] { world.broadcast(ok, -1); });
    refused("sizes do not fit", [&] { world.all_gather(at::ones({n * 3 + 1}), at::ones({3})); });
    refused("sizes do not fit", [&] { world.reduce_scatter(at::ones({3}), at::ones({n * 3 + 1})); });
    refused("differ in dtype", [&] { world.all_gather(at::ones({n * 3}), at::ones({3}, at::kLong)); });
    refused("not contiguous", [&] { world.all_gather(at::ones({n * 24}), ok.t()); });
    refused("overlap", [&] {
      const auto whole = at::ones({n * 4 + 1});
      world.all_gather(whole.narrow(0, 0, n * 4), whole.narrow(0, world.rank() * 4 + 1, 4));
    });
    EXPECT_EQ(world.collectives_issued(), 0);
    world.all_reduce(ok).wait();
    EXPECT_EQ(ok[0][0].item<float>(), static_cast<float>(n));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Inputs, testing::Values(1, 2, 3));

TEST(Collective, keeps_dense_strides_and_reduces_in_place) {
  run(2, [](World& world) {
    const auto image = at::full({2, 3, 4, 5}, world.rank() + 1.0).contiguous(at::MemoryFormat::ChannelsLast);
    const auto* data = image.const_data_ptr();
    world.all_reduce(image).wait();
    EXPECT_EQ(image.const_data_ptr(), data);
    EXPECT_TRUE(image.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(at::equal(image, at::full({2, 3, 4, 5}, 3.0)));
    const auto transposed = at::full({3, 4}, world.rank() + 1.0).t();
    world.broadcast(transposed, 1).wait();
    EXPECT_TRUE(at::equal(transposed, at::full({4, 3}, 2.0)));
    const auto scalar = at::full({}, world.rank() + 1.0);
    world.all_reduce(scalar).wait();
    EXPECT_EQ(scalar.item<double>(), 3.0);
  });
}

TEST(Collective, touches_only_the_slice_it_is_given) {
  run(3, [](World& world) {
    const auto arena = at::ones({30});
    world.all_reduce(arena.narrow(0, 10, 10)).wait();
    auto wanted = at::ones({30});
    wanted.narrow(0, 10, 10).fill_(3);
    EXPECT_TRUE(at::equal(arena, wanted));
  });
}

TEST(Collective, works_in_place_where_the_small_tensor_is_its_part_of_the_large_one) {
  run(3, [](World& world) {
    const auto rank = world.rank();
    const auto whole = at::full({12}, rank + 1.0);
    world.all_gather(whole, whole.narrow(0, rank * 4, 4)).wait();
    EXPECT_TRUE(at::equal(whole, at::tensor({1.0, 2.0, 3.0}).repeat_interleave(4)));
    const auto sums = at::full({12}, rank + 1.0);
    world.reduce_scatter(sums.narrow(0, rank * 4, 4), sums).wait();
    EXPECT_TRUE(at::equal(sums.narrow(0, rank * 4, 4), at::full({4}, 6.0)));
  });
}

TEST(Collective, writes_leaves_and_tells_autograd) {
  run(2, [](World& world) {
    const auto leaf = at::full({3}, world.rank() + 1.0).requires_grad_();
    const auto loss = (leaf * leaf).sum();
    world.broadcast(leaf, 1).wait();
    EXPECT_TRUE(leaf.is_leaf());
    EXPECT_EQ(leaf[0].item<double>(), 2.0);
    if (world.rank() == 0) {
      EXPECT_THROW(loss.backward(), c10::Error) << "a saved tensor was overwritten unnoticed";
    } else {
      EXPECT_NO_THROW(loss.backward()) << "the root's tensor was not written";
    }
  });
}

TEST(Collective, average_is_the_sum_divided_in_the_tensors_dtype) {
  run(3, [](World& world) {
    const auto tensor = at::tensor({1.0, 0.1, 1e-30}).to(at::kFloat) * (world.rank() + 1);
    const auto sum = tensor.clone();
    world.all_reduce(sum).wait();
    world.all_reduce(tensor, ReduceOp::Average).wait();
    EXPECT_TRUE(at::equal(tensor, sum / 3));
  });
}

TEST(Collective, every_rank_gets_the_same_bits) {
  std::vector<at::Tensor> results(4);
  run(4, [&](World& world) {
    auto tensor = at::sin(at::arange(10007, at::kFloat) * (world.rank() + 1));
    for (int i = 0; i < 5; ++i) {
      world.all_reduce(tensor, ReduceOp::Average).wait();
      tensor.mul_(1.0001);
    }
    results[static_cast<std::size_t>(world.rank())] = tensor;
  });
  for (const auto& result : results) {
    EXPECT_TRUE(at::equal(result, results[0]));
  }
}

TEST(Collective, work_may_be_asked_and_waited_for_more_than_once) {
  run(2, [](World& world) {
    const auto tensor = at::full({4}, world.rank() + 1.0);
    auto work = world.all_reduce(tensor, ReduceOp::Average);
    auto copy = work;
    while (!work.done()) {
      std::this_thread::yield();
    }
    EXPECT_EQ(tensor[0].item<double>(), 1.5);
    work.wait();
    copy.wait();
    work.wait();
    EXPECT_EQ(tensor[0].item<double>(), 1.5) << "divided twice";
  });
}

TEST(Collective, many_are_in_flight_together) {
  run(3, [](World& world) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 100; ++i) {
      tensors.push_back(at::full({i + 1}, i));
      works.push_back(world.all_reduce(tensors.back()));
    }
    for (int i = 99; i >= 0; --i) {
      works[static_cast<std::size_t>(i)].wait();
      EXPECT_TRUE(at::equal(tensors[static_cast<std::size_t>(i)], at::full({i + 1}, 3 * i)));
    }
    EXPECT_EQ(world.collectives_issued(), 100);
  });
}

std::string text_of(int rank) {
  return std::string(static_cast<std::size_t>(rank) * 1000, 'x') + std::string("\0\n", 2);
}

TEST(Collective, texts_may_differ_in_length) {
  run(4, [](World& world) {
    const auto texts = world.all_gather_text(text_of(world.rank()));
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(texts[rank], text_of(static_cast<int>(rank)));
    }
    EXPECT_EQ(world.all_gather_text(""), std::vector<std::string>(4));
  });
}

TEST(Collective, barrier_holds_until_all_have_come) {
  std::atomic<int> arrived{0};
  run(3, [&](World& world) {
    std::this_thread::sleep_for(30ms * world.rank());
    ++arrived;
    world.barrier();
    EXPECT_EQ(arrived, 3);
  });
}

TEST(Split, orders_by_key_then_rank_and_shares_nothing_between_colors) {
  run(4, [](World& world) {
    const auto part = world.split(world.rank() / 2, -world.rank());
    EXPECT_EQ(part.size(), 2);
    EXPECT_EQ(part.rank(), 1 - world.rank() % 2);
    const auto tensor = at::full({1}, world.rank());
    part.all_reduce(tensor).wait();
    EXPECT_EQ(tensor.item<int>(), world.rank() < 2 ? 1 : 5);
    const auto root = at::full({1}, world.rank());
    part.broadcast(root, 0).wait();
    EXPECT_EQ(root.item<int>(), world.rank() < 2 ? 1 : 3);
    const auto same_key = world.split(0);
    EXPECT_EQ(same_key.rank(), world.rank());
  });
}

TEST(Split, negative_color_takes_no_part) {
  run(3, [](World& world) {
    const auto part = world.split(world.rank() == 1 ? -1 : 7);
    EXPECT_EQ(part.size(), world.rank() == 1 ? 1 : 2);
    const auto tensor = at::ones({1});
    part.all_reduce(tensor).wait();
    EXPECT_EQ(tensor.item<int>(), part.size());
    world.barrier();
  });
}

TEST(Split, of_a_part_and_many_times) {
  run(4, [](World& world) {
    const auto half = world.split(world.rank() / 2);
    for (int i = 0; i < 5; ++i) {
      const auto alone = half.split(half.rank());
      EXPECT_EQ(alone.size(), 1);
      const auto both = half.split(0);
      const auto tensor = at::ones({1});
      both.all_reduce(tensor).wait();
      EXPECT_EQ(tensor.item<int>(), 2);
    }
  });
}

// ---- How worlds are made

// Each rank on a thread, without run_ranks; rethrows the exception of the lowest rank that has one.
void on_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::future<void>> ends;
  for (int rank = 0; rank < ranks; ++rank) {
    ends.push_back(std::async(std::launch::async, body, rank));
  }
  for (auto& end : ends) {
    end.wait();
  }
  for (auto& end : ends) {
    end.get();
  }
}

WorldOptions options_of(int rank, int size) {
  auto options = quick_options();
  options.rank = rank;
  options.size = size;
  return options;
}

void expect_sum(const World& world) {
  const auto tensor = at::ones({3});
  world.all_reduce(tensor).wait();
  EXPECT_EQ(tensor[2].item<float>(), static_cast<float>(world.size()));
}

TEST(Making, over_a_port_that_rank_0_serves_many_times_in_a_row) {
  const int port = test::free_port();
  on_threads(3, [&](int rank) {
    auto options = options_of(rank, 3);
    options.master_port = port;
    for (int i = 0; i < 8; ++i) {
      const World world(options);
      EXPECT_EQ(world.backend(), BackendKind::Gloo);
      expect_sum(world);
    }
  });
}

TEST(Making, over_a_store_of_the_callers_several_times) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_threads(2, [&](int rank) {
    auto options = options_of(rank, 2);
    options.store = store;
    for (int i = 0; i < 3; ++i) {
      const World world(options);
      expect_sum(world);
    }
    options.store_prefix = "attempt_1";
    expect_sum(World(options));
  });
}

TEST(Making, names_the_ranks_that_do_not_come) {
  auto options = options_of(0, 3);
  options.store = c10::make_intrusive<c10d::HashStore>();
  options.timeout = 300ms;
  try {
    const World world(options);
    ADD_FAILURE() << "made";
  } catch (const WorldError& error) {
    EXPECT_STREQ(error.what(), "[world] not all ranks have come within 0.3 s; missing: 1, 2");
    EXPECT_EQ(error.origin(), 1);
  }
}

TEST(Making, says_that_the_store_cannot_be_reached) {
  auto options = options_of(1, 2);
  options.master_port = test::free_port();
  options.timeout = 1s;
  try {
    const World world(options);
    ADD_FAILURE() << "made";
  } catch (const WorldError& error) {
    EXPECT_EQ(
        std::string(error.what()).rfind("[world] rank 1 cannot use the store that rank 0 serves at 127.0.0.1:", 0), 0)
        << error.what();
  }
}

TEST(Making, refuses_ranks_that_were_told_different_things) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> texts(2);
  on_threads(2, [&](int rank) {
    auto options = options_of(rank, rank == 0 ? 2 : 3);
    options.store = store;
    try {
      const World world(options);
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  EXPECT_NE(texts[0].find("ranks were told different things"), std::string::npos) << texts[0];
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(Making, ends_ranks_that_wait_when_one_cannot_join) {
  auto options = quick_options();
  options.interface = "no-such-interface";
  const auto failure = test::failure_of(
      2, [](World&) {}, options);
  ASSERT_TRUE(failure);
  EXPECT_NE(std::string(failure->what()).find("cannot join group all"), std::string::npos) << failure->what();
}

TEST(RunRanks, refuses_nonsense_before_it_starts_a_thread) {
  EXPECT_THROW(run_ranks(0, [](World&) {}), InputError);
  auto options = quick_options();
  options.timeout = 0ms;
  EXPECT_THROW(run_ranks(
                   2, [](World&) {}, options),
               InputError);
}

}  // namespace
}  // namespace lockstep
