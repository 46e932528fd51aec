// SPDX-License-Identifier: Apache-2.0
// Gradients that are copied together arrive as they would one by one. Needs one CUDA device.
#include <ATen/ATen.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAFunctions.h>
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

// A round that is not late comes first: it loads the kernels, and loading one waits for the device.
TEST(WaitingGradientsCuda, the_stream_that_asks_for_them_waits_for_them) {
  const auto options = at::TensorOptions(at::kCUDA);
  const auto gradient = at::ones({1000}, options);
  const auto expected = at::full({1000}, 0.5, options);
  const auto elsewhere = c10::cuda::getStreamFromPool();
  for (const auto& [count, late] : {std::pair(3, false), {40, false}, {3, true}, {40, true}}) {
    std::vector<at::Tensor> slots;
    for (int i = 0; i < count; ++i) {
      slots.push_back(at::zeros({1000}, options));
    }
    c10::cuda::device_synchronize();
    WaitingGradients waiting;
    {
      const c10::cuda::CUDAStreamGuard guard(elsewhere);
      if (late) {
        at::cuda::sleep(200'000'000);  // a tenth of a second: the copies cannot be done by chance
      }
      for (const auto& slot : slots) {
        EXPECT_TRUE(waiting.hold(slot, gradient));
      }
    }
    waiting.deliver(number(0.5));
    EXPECT_TRUE(at::equal(slots.front(), expected)) << count << " together";
    EXPECT_TRUE(at::equal(slots.back(), expected)) << count << " together";
  }
}

}  // namespace
}  // namespace lockstep::ddp
