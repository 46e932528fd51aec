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

at::Tensor parameter_of(double value, at::ScalarType dtype) {
  return at::full({8}, value, dtype).requires_grad_();
}

void set_gradient(const at::Tensor& parameter, double value) {
  parameter.mutable_grad() = at::full_like(parameter, value, at::TensorOptions().requires_grad(false));
}

TEST(Masters, H1_small_updates_add_up_in_the_master_and_are_lost_without) {
  struct Case {
    at::ScalarType dtype;
    double update, master, parameter;
  };
  for (const auto& c : {Case{at::kBFloat16, 6e-4, 0.94, 0.94140625}, Case{at::kHalf, 1e-4, 0.99, 0.990234375}}) {
    for (const bool kept : {true, false}) {
      auto parameter = parameter_of(1, c.dtype);
      SGD optimizer(Tensors{parameter}, SGDOptions(c.update), {.master_weights = kept});
      for (int i = 0; i < 100; ++i) {
        set_gradient(parameter, 1);
        optimizer.step();
      }
      EXPECT_EQ(parameter[0].item<double>(), kept ? c.parameter : 1.0);
      if (kept) {
        EXPECT_NEAR(optimizer.master(parameter)[0].item<double>(), c.master, 1e-5);
      }
    }
  }
}

TEST(Masters, H2_a_zero_gradient_in_fp16_moves_nothing) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    for (const bool kept : {true, false}) {
      auto parameter = parameter_of(3, dtype);
      Adam optimizer(Tensors{parameter}, {}, {.master_weights = kept});
      set_gradient(parameter, 0);
      optimizer.step();
      EXPECT_TRUE(same_bits(parameter, at::full({8}, 3, dtype)));
    }
  }
}

/// Everything that can write a parameter behind the optimizer's back, version counter bumped or not.
std::vector<std::function<void(at::Tensor&)>> writers() {
  return {[](at::Tensor& p) { p.detach().fill_(5); }, [](at::Tensor& p) { p.set_data(at::full_like(p, 5)); },
          [](at::Tensor& p) { static_cast<at::Half*>(p.mutable_data_ptr())[3] = 5; },
          [](at::Tensor& p) { p.detach().narrow(0, 2, 3).copy_(at::full({3}, 5, at::kFloat)); }};
}

TEST(Masters, H5_whoever_writes_the_parameter_is_heard) {
  for (const auto& write : writers()) {
    for (const int when : {0, 1, 2}) {  // before the first step, after it, after a backward
      auto parameter = parameter_of(1, at::kHalf);
      SGD optimizer(Tensors{parameter}, SGDOptions(0.001), kMasters);
      for (int step = 0; step < when; ++step) {
        set_gradient(parameter, 1);
        optimizer.step();
      }
      const auto master_before = when > 0 ? optimizer.master(parameter).clone() : parameter.detach().to(at::kFloat);
      const auto before = parameter.detach().clone();
      set_gradient(parameter, 0);
      write(parameter);
      const auto written = parameter.detach().clone();
      optimizer.step();
      EXPECT_TRUE(same_bits(parameter, written));
      const auto expected = at::where(written != before, written.to(at::kFloat), master_before);
      EXPECT_TRUE(same_bits(optimizer.master(parameter), expected));
    }
  }
}

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
