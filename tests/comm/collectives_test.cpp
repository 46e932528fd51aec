// SPDX-License-Identifier: Apache-2.0
// Every collective over worlds, dtypes and sizes, against the joined inputs of all ranks.
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

using test::run;

constexpr std::int64_t kSizes[] = {0, 1, 7, 1025, 70001};

// Small whole numbers that differ between ranks: their sums are exact in every dtype.
at::Tensor input_of(int rank, std::int64_t size, at::ScalarType dtype) {
  const auto steps = at::arange(size, at::kLong);
  const auto values = (steps * 7 + rank * 3).remainder(11);
  if (at::isComplexType(dtype)) {
    return at::complex(values.to(at::kDouble), (values - 5 * rank).to(at::kDouble)).to(dtype);
  }
  if (dtype == at::kBool) {
    return (steps + rank).remainder(3) == 0;
  }
  const bool has_sign = dtype != at::kByte;
  return (has_sign ? values - 5 : values).to(dtype);
}

// All ranks' inputs, one row each, in a dtype wide enough for any sum.
at::Tensor joined(int ranks, std::int64_t size, at::ScalarType dtype) {
  std::vector<at::Tensor> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    rows.push_back(input_of(rank, size, dtype).to(at::isComplexType(dtype) ? at::kComplexDouble : at::kDouble));
  }
  return at::stack(rows);
}

at::Tensor reduced(const at::Tensor& rows, ReduceOp op, at::ScalarType dtype) {
  const auto sum = rows.sum(0);
  switch (op) {
    case ReduceOp::Sum:
      return (dtype == at::kBool ? sum.clamp_max(1) : sum).to(dtype);
    case ReduceOp::Average:
      return at::isComplexType(dtype) ? at::view_as_complex(at::view_as_real(sum.to(dtype)) / rows.size(0))
                                      : sum.to(dtype) / rows.size(0);
    case ReduceOp::Min:
      return std::get<0>(rows.min(0)).to(dtype);
    default:
      return std::get<0>(rows.max(0)).to(dtype);
  }
}

std::vector<ReduceOp> ops_of(at::ScalarType dtype) {
  if (at::isComplexType(dtype)) {
    return {ReduceOp::Sum, ReduceOp::Average};
  }
  if (at::isFloatingType(dtype)) {
    return {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max};
  }
  return {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max};
}

// gtest's assertions do not end a rank's thread; an exception ends all ranks.
void require_equal(const at::Tensor& got, const at::Tensor& wanted, const char* what) {
  if (!at::equal(got, wanted)) {
    throw std::runtime_error(c10::str(what, " of ", got.numel(), " ", got.scalar_type(), " is wrong"));
  }
}

class Collectives : public testing::TestWithParam<std::tuple<int, at::ScalarType>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  at::ScalarType dtype() const { return std::get<1>(GetParam()); }

  void for_each_size(const std::function<void(World&, std::int64_t)>& check) const {
    run(ranks(), [&](World& world) {
      for (const auto size : kSizes) {
        check(world, size);
      }
    });
  }
};

TEST_P(Collectives, all_reduce_equals_the_joined_reduction) {
  for_each_size([this](World& world, std::int64_t size) {
    for (const auto op : ops_of(dtype())) {
      const auto tensor = input_of(world.rank(), size, dtype());
      const auto wanted = size == 0 ? tensor.clone() : reduced(joined(ranks(), size, dtype()), op, dtype());
      world.all_reduce(tensor, op).wait();
      require_equal(tensor, wanted, "all_reduce");
    }
  });
}

TEST_P(Collectives, broadcast_gives_every_rank_the_roots_values) {
  for_each_size([this](World& world, std::int64_t size) {
    for (int root = 0; root < ranks(); ++root) {
      const auto tensor = input_of(world.rank(), size, dtype());
      world.broadcast(tensor, root).wait();
      require_equal(tensor, input_of(root, size, dtype()), "broadcast");
    }
  });
}

TEST_P(Collectives, all_gather_joins_in_rank_order) {
  for_each_size([this](World& world, std::int64_t size) {
    const auto output = at::zeros({ranks() * size}, dtype());
    world.all_gather(output, input_of(world.rank(), size, dtype())).wait();
    require_equal(output.view({ranks(), size}), joined(ranks(), size, dtype()).to(dtype()), "all_gather");
  });
}

TEST_P(Collectives, reduce_scatter_gives_each_rank_its_part_of_the_reduction) {
  for_each_size([this](World& world, std::int64_t size) {
    for (const auto op : ops_of(dtype())) {
      const auto input = input_of(world.rank(), ranks() * size, dtype());
      const auto before = input.clone();
      const auto output = at::zeros({size}, dtype());
      world.reduce_scatter(output, input, op).wait();
      if (size > 0) {
        const auto whole = reduced(joined(ranks(), ranks() * size, dtype()), op, dtype());
        require_equal(output, whole.narrow(0, world.rank() * size, size), "reduce_scatter");
      }
      require_equal(input, before, "reduce_scatter's input");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Grid, Collectives,
    testing::Combine(testing::Values(1, 2, 3, 4),
                     testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kChar,
                                     at::kByte, at::kBool, at::kComplexFloat, at::kComplexDouble)),
    [](const auto& param) { return c10::str(std::get<0>(param.param), "_", c10::toString(std::get<1>(param.param))); });

}  // namespace
}  // namespace lockstep
