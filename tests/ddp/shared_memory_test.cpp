// SPDX-License-Identifier: Apache-2.0
// Gradients that autograd makes of views of one tensor.
#include "ddp/shared_memory.h"

#include "lockstep/ddp/data_parallel.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using test::run;

/// Two parameters whose gradients are views of one buffer.
struct Twins {
  at::Tensor a = at::zeros({2, 3}).requires_grad_();
  at::Tensor b = at::zeros({3, 2}).requires_grad_();
  at::Tensor weights = at::arange(1, 7, at::kFloat);

  ModelTensors tensors() const { return {{{"a", a}, {"b", b}}, {}}; }
  void backward() const { ((a.view(6) + b.view(6)) * weights).sum().backward(); }
  bool have(double factor) const {
    return at::equal(a.grad().view(6), weights * factor) && at::equal(b.grad().reshape(6), weights * factor);
  }
};

TEST(SharedMemory, of_gradients_is_parted_in_quiet_and_in_reduced_passes) {
  for (const int ranks : {1, 2}) {
    run(ranks, [](World& world) {
      Twins twins;
      DataParallelBase ddp({[&] { return twins.tensors(); }}, world);
      for (int window = 0; window < 2; ++window) {
        {
          const auto quiet = ddp.no_sync();
          twins.backward();
          EXPECT_TRUE(twins.have(1)) << twins.a.grad();
          twins.backward();
          EXPECT_TRUE(twins.have(2)) << twins.a.grad();
        }
        twins.backward();
        EXPECT_TRUE(twins.have(3)) << twins.a.grad();
        twins.a.mutable_grad().mul_(2);
        EXPECT_TRUE(at::equal(twins.b.grad().reshape(6), twins.weights * 3));
        twins.a.mutable_grad().reset();
        twins.b.mutable_grad().reset();
      }
      twins.backward();
      twins.a.mutable_grad().mul_(2);
      EXPECT_TRUE(at::equal(twins.b.grad().reshape(6), twins.weights));
    });
  }
}

TEST(SharedMemory, leaves_gradients_in_place_that_lie_side_by_side) {
  const auto flat = at::arange(6, at::kFloat);
  auto first = flat.narrow(0, 0, 2);
  auto second = flat.narrow(0, 2, 4);
  auto overlapping = flat.narrow(0, 1, 3);
  auto none = at::Tensor();
  ddp::separate({&second, &first, &none});
  EXPECT_TRUE(first.is_alias_of(flat) && second.is_alias_of(flat));
  ddp::separate({&second, &overlapping, &first});
  EXPECT_TRUE(first.is_alias_of(flat) && second.is_alias_of(flat));
  EXPECT_FALSE(overlapping.is_alias_of(flat));
  EXPECT_TRUE(at::equal(overlapping, flat.narrow(0, 1, 3)));
}

TEST(CreateGraph, leaves_gradients_without_history_whatever_the_number_of_ranks) {
  for (const int ranks : {1, 2}) {
    run(ranks, [](World& world) {
      const auto w = at::full({3}, 2.0).requires_grad_();
      DataParallelBase ddp({[&] { return ModelTensors{{{"w", w}}, {}}; }}, world);
      w.pow(3).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
      EXPECT_FALSE(w.grad().requires_grad());
      EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 12.0)));
    });
  }
}

}  // namespace
}  // namespace lockstep
