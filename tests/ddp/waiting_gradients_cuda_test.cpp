// SPDX-License-Identifier: Apache-2.0
// Gradients that are copied together arrive as they would one by one. Needs one CUDA device.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include "ddp/waiting_gradients.h"

namespace lockstep::ddp {
namespace {

std::vector<at::Tensor> some_gradients(at::ScalarType dtype, std::int64_t count) {
  std::vector<at::Tensor> gradients;
  for (std::int64_t i = 0; i < count; ++i) {
    gradients.push_back(at::randn({i % 7, 1 + i % 5}, at::TensorOptions(at::kCUDA)).to(dtype));
  }
  gradients.push_back(at::randn({70'000}, at::TensorOptions(at::kCUDA)).to(dtype));
  return gradients;
}

at::Tensor number(double value) {
  auto tensor = at::scalar_tensor(value, at::kDouble);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

void expect_as_one_by_one(at::ScalarType dtype, double scale, std::int64_t count) {
  WaitingGradients waiting;
  std::vector<at::Tensor> slots, expected;
  for (const auto& gradient : some_gradients(dtype, count)) {
    slots.push_back(at::full_like(gradient, -1));
    expected.push_back(gradient * scale);
    EXPECT_TRUE(waiting.hold(slots.back(), gradient));
  }
  waiting.deliver(number(scale));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_TRUE(at::equal(slots[i], expected[i])) << dtype << " times " << scale << ", tensor " << i;
  }
}

TEST(WaitingGradientsCuda, arrive_as_they_would_one_by_one) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    for (const double scale : {1.0, 0.5, 1.0 / 3}) {
      expect_as_one_by_one(dtype, scale, 200);
      expect_as_one_by_one(dtype, scale, 3);
    }
  }
}

TEST(WaitingGradientsCuda, what_cannot_be_copied_with_the_others_does_not_wait) {
  const auto options = at::TensorOptions(at::kCUDA);
  WaitingGradients waiting;
  const auto slot = at::zeros({3, 4}, options);
  EXPECT_FALSE(waiting.hold(slot, at::ones({4, 3}, options).t()));
  EXPECT_FALSE(waiting.hold(slot, slot));
  EXPECT_TRUE(waiting.hold(slot, at::ones({3, 4}, options)));
  {
    const c10::cuda::CUDAStreamGuard other(c10::cuda::getStreamFromPool());
    EXPECT_FALSE(waiting.hold(slot, at::ones({3, 4}, options)));
  }
  waiting.forget();
  waiting.deliver(number(1));
  EXPECT_TRUE(at::equal(slot, at::zeros({3, 4}, options)));
}

}  // namespace
}  // namespace lockstep::ddp
