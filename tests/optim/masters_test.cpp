// SPDX-License-Identifier: Apache-2.0
// fp32 masters of 16-bit parameters: kept, never stale, and paired ones.
#include "lockstep/error.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "optim/support.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::test;
using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

const FusedOptions kMasters{.master_weights = true};

TEST(Masters, a_given_master_counts_where_it_rounds_to_the_parameter) {
  auto parameter = parameter_of(1, at::kBFloat16);
  SGD optimizer(Tensors{parameter}, SGDOptions(0.1), kMasters);
  auto master = at::full({8}, 1.0005);
  master[7] = 2;
  optimizer.set_master(parameter, master);
  set_gradient(parameter, 0);
  optimizer.step();
  EXPECT_FLOAT_EQ(optimizer.master(parameter)[0].item<float>(), 1.0005f);
  EXPECT_EQ(optimizer.master(parameter)[7].item<float>(), 1);
  EXPECT_THROW(optimizer.set_master(parameter, at::ones({3})), InputError);
  SGD without(Tensors{parameter}, SGDOptions(0.1));
  EXPECT_THROW(without.set_master(parameter, master), InputError);
}

struct Paired {
  at::Tensor parameter = parameter_of(1, at::kBFloat16);
  at::Tensor master = at::full({8}, 1.0).requires_grad_();
  Adam optimizer{Tensors{master}, AdamOptions(1e-3)};
  Paired() { optimizer.set_master_pairs({{master, parameter}}); }
};

TEST(Masters, a_pair_is_updated_in_one_step) {
  Paired p;
  auto twin = at::full({8}, 1.0).requires_grad_();
  torch::optim::Adam stock(Tensors{twin}, AdamOptions(1e-3));
  for (int i = 0; i < 5; ++i) {
    // The gradient may be the 16-bit one that backward made.
    p.master.mutable_grad() = at::full({8}, 128.0, at::kBFloat16);
    twin.mutable_grad() = at::full({8}, 1.0);
    const auto version = p.parameter._version();
    p.optimizer.step_scaled(one(128), one(0));
    stock.step();
    EXPECT_GT(p.parameter._version(), version);
  }
  expect_close({p.master}, {twin}, 5 * 1.2e-7, "master");
  EXPECT_TRUE(same_bits(p.parameter, p.master.detach().to(at::kBFloat16)));
  EXPECT_TRUE(p.optimizer.master(p.parameter).is_same(p.master));
}

TEST(Masters, a_pairs_parameter_that_somebody_wrote_is_heard_and_a_skipped_step_writes_neither) {
  Paired p;
  p.parameter.detach().fill_(5);
  p.master.mutable_grad() = at::zeros({8});
  p.optimizer.step_scaled({}, one(1));
  EXPECT_EQ(p.master[0].item<float>(), 1);
  p.optimizer.step_scaled({}, {});
  EXPECT_EQ(p.master[0].item<float>(), 5);
  EXPECT_EQ(p.parameter[0].item<float>(), 5);
}

TEST(Masters, pairs_that_do_not_fit_are_refused) {
  SGD optimizer(Tensors{at::ones({8}).requires_grad_()}, SGDOptions(0.1));
  const auto low = at::ones({8}, at::kHalf);
  EXPECT_THROW(optimizer.set_master_pairs({{at::ones({7}), low}}), InputError);
  EXPECT_THROW(optimizer.set_master_pairs({{at::ones({8}, at::kDouble), low}}), InputError);
  EXPECT_THROW(optimizer.set_master_pairs({{at::ones({8}), at::ones({8})}}), InputError);
  EXPECT_THROW(optimizer.set_master_pairs({{at::ones({8}), {}}}), InputError);
}

}  // namespace
}  // namespace lockstep::optim
