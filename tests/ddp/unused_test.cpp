// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"

namespace lockstep {
namespace {

struct Pair {
  at::Tensor a = at::ones({2}).requires_grad_();
  at::Tensor b = at::ones({2}).requires_grad_();
  DataParallelBase ddp;

  Pair(World& world, UnusedParameters unused)
      : ddp(ModelTensors{{{"a", a}, {"b", b}}, {}}, world, {.unused = unused}) {}
  void clear() {
    a.mutable_grad() = at::Tensor();
    b.mutable_grad() = at::Tensor();
  }
};

TEST(Unused, B1_is_an_error_on_every_rank_at_the_end_of_that_backward) {
  std::vector<std::string> texts(3);
  try {
    run_ranks(3, [&](World& world) {
      Pair model(world, UnusedParameters::Error);
      try {
        (world.rank() == 1 ? model.a : model.a + model.b).sum().backward();
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(world.rank())] = error.what();
        throw;
      }
    });
    FAIL();
  } catch (const WorldError& error) {
    EXPECT_EQ(error.origin(), 1);
  }
  for (const auto& text : texts) {
    EXPECT_NE(text.find("no gradient for parameters of rank 1 in step 0: b"), std::string::npos) << text;
  }
}

TEST(Unused, alone_the_error_comes_too_and_the_next_step_is_right) {
  World world;
  Pair model(world, UnusedParameters::Error);
  EXPECT_THROW(model.a.sum().backward(), InputError);
  model.clear();
  (model.a * 2 + model.b).sum().backward();
  EXPECT_TRUE(at::equal(model.a.grad(), at::full({2}, 2.0F)));
}

TEST(Unused, B2_unused_everywhere_stays_untouched) {
  run_ranks(2, [](World& world) {
    auto p = at::ones({1}).requires_grad_();
    auto q = at::ones({1}).requires_grad_();
    const DataParallelBase ddp(ModelTensors{{{"p", p}, {"q", q}}, {}}, world, {.unused = UnusedParameters::Detect});
    torch::optim::SGD sgd({p, q}, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
    (p + q).sum().backward();
    sgd.step();
    EXPECT_NEAR(p.item<float>(), 0.89, 1e-6);
    sgd.zero_grad();
    q.sum().backward();
    EXPECT_FALSE(p.grad().defined());
    sgd.step();
    EXPECT_NEAR(p.item<float>(), 0.89, 1e-6);
  });
}

TEST(Unused, B2_used_on_one_rank_is_the_average_of_what_there_is) {
  run_ranks(2, [](World& world) {
    Pair model(world, UnusedParameters::Detect);
    (world.rank() == 0 ? model.a + model.b * 6 : model.a).sum().backward();
    EXPECT_TRUE(at::equal(model.b.grad(), at::full({2}, 3.0F)));
    EXPECT_EQ(model.ddp.statistics().unused,
              world.rank() == 0 ? std::vector<std::string>{} : std::vector<std::string>{"b"});
  });
}

TEST(Unused, a_gradient_that_was_not_cleared_survives_an_unused_step_bit_for_bit) {
  run_ranks(3, [](World& world) {
    Pair model(world, UnusedParameters::Detect);
    (model.a + model.b * 0.1).sum().backward();
    const auto before = model.b.grad().clone();
    model.a.sum().backward();
    EXPECT_TRUE(at::equal(model.b.grad(), before));
  });
}

TEST(Unused, a_gradient_that_was_not_cleared_takes_part_where_another_rank_adds_to_it) {
  run_ranks(2, [](World& world) {
    Pair model(world, UnusedParameters::Detect);
    (model.a + model.b * 4).sum().backward();
    (world.rank() == 0 ? model.a + model.b * 2 : model.a).sum().backward();
    EXPECT_TRUE(at::equal(model.b.grad(), at::full({2}, 5.0F)));
  });
}

TEST(Unused, E3_a_constant_loss_on_one_rank_counts_as_zeros) {
  run_ranks(2, [](World& world) {
    Pair model(world, UnusedParameters::Detect);
    // A rank whose loss does not reach the model takes part through a product with zero.
    const auto loss = world.rank() == 0 ? (model.a + model.b).sum() : (model.a * 0).sum();
    loss.backward();
    EXPECT_TRUE(at::equal(model.a.grad(), at::full({2}, 0.5F)));
    EXPECT_TRUE(at::equal(model.b.grad(), at::full({2}, 0.5F)));
  });
}

TEST(Unused, usage_may_change_from_step_to_step_and_differ_between_ranks) {
  run_ranks(3, [](World& world) {
    Pair model(world, UnusedParameters::Detect);
    for (int step = 0; step < 9; ++step) {
      model.clear();
      const bool uses_b = step % 3 == world.rank();
      (uses_b ? model.a + model.b * 3 : model.a).sum().backward();
      EXPECT_TRUE(at::allclose(model.b.grad(), at::ones({2}))) << step;
      EXPECT_TRUE(at::allclose(model.a.grad(), at::ones({2}))) << step;
    }
  });
}

TEST(Unused, a_kept_gradient_keeps_its_values_when_its_parameter_is_not_used) {
  run_ranks(2, [](World& world) {
    Pair model(world, UnusedParameters::Detect);
    (model.a + model.b * 3).sum().backward();
    const auto kept = model.b.grad();
    model.clear();
    model.a.sum().backward();
    EXPECT_TRUE(at::equal(kept, at::full({2}, 3.0F)));
  });
}

TEST(Unused, a_window_that_was_dropped_does_not_count_as_use) {
  run_ranks(2, [](World& world) {
    Pair model(world, UnusedParameters::Detect);
    {
      const auto quiet = model.ddp.no_sync();
      (model.a + model.b).sum().backward();
    }
    model.clear();
    model.a.sum().backward();
    EXPECT_FALSE(model.b.grad().defined());
  });
}

}  // namespace
}  // namespace lockstep
