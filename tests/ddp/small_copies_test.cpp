// SPDX-License-Identifier: Apache-2.0
#include "ddp/small_copies.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/digest.h"

namespace lockstep::ddp {
namespace {

using Limits = std::numeric_limits<float>;

at::Tensor awkward(at::ScalarType dtype) {
  auto values = (100 * at::randn({6, 50, 4})).to(dtype);
  auto flat = values.view({-1});
  flat[0] = Limits::infinity();
  flat[1] = Limits::quiet_NaN();
  flat[2] = -0.0;
  flat[3] = Limits::denorm_min();
  flat[4] = Limits::max();
  return values;
}

/// ATen writes NaN in 16 bits as another NaN where it uses wide registers.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = [](const at::Tensor& tensor) { return core::digest(tensor.nan_to_num(-7, INFINITY, -INFINITY)); };
  return at::equal(a.isnan(), b.isnan()) && bits(a) == bits(b);
}

TEST(SmallCopies, have_the_bits_of_a_product) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto& gradient : {awkward(dtype), awkward(dtype).permute({2, 0, 1}), awkward(dtype)[0][2].clone()}) {
      for (const double scale : {1.0, 0.5, 1.0 / 3, 1.0 / 7, 1e-30}) {
        const auto slot = at::empty_like(gradient);
        EXPECT_TRUE(scale_if_small(slot, gradient, scale));
        EXPECT_TRUE(same_bits(slot, gradient * scale)) << dtype << gradient.sizes() << " " << scale;
      }
    }
  }
}

TEST(SmallCopies, of_one_element_and_of_none) {
  const auto slot = at::zeros({});
  EXPECT_TRUE(scale_if_small(slot, at::full({}, 3.0F), 0.5));
  EXPECT_EQ(slot.item<float>(), 1.5F);
  EXPECT_TRUE(scale_if_small(at::zeros({0, 3}), at::zeros({0, 3}), 0.5));
}

TEST(SmallCopies, leave_to_aten_what_does_not_suit) {
  const auto refused = [](const at::Tensor& gradient) {
    const auto slot = at::zeros({4, 6}, gradient.options().layout(at::kStrided));
    return !scale_if_small(slot, gradient, 2) && at::equal(slot, at::zeros_like(slot));
  };
  EXPECT_TRUE(refused(at::ones({4, 6}, at::kComplexFloat)));
  EXPECT_TRUE(refused(at::ones({6, 4}).t()));
  EXPECT_TRUE(refused(at::ones({1, 6}).expand({4, 6})));
  EXPECT_TRUE(refused(at::ones({4, 6})._neg_view()));
  EXPECT_TRUE(refused(at::ones({4, 6}).to_sparse()));
  EXPECT_FALSE(scale_if_small(at::zeros({100'000}), at::ones({100'000}), 2));
}

TEST(SmallCopies, are_seen_by_a_graph_that_saved_the_old_values) {
  const auto slot = at::zeros({3});
  const auto leaf = at::ones({3}).requires_grad_();
  const auto loss = (leaf * slot).sum();
  EXPECT_TRUE(scale_if_small(slot, at::ones({3}), 1));
  EXPECT_THROW(loss.backward(), c10::Error);
}

}  // namespace
}  // namespace lockstep::ddp
