// SPDX-License-Identifier: Apache-2.0
// The CUDA update of the loss scale beside the CPU's, bit for bit. Needs one CUDA device.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include "amp/scale_state.h"

namespace lockstep::amp {
namespace {

const c10::Device kCuda(c10::kCUDA, 0);

void expect_equal(const ScaleState& got, const ScaleState& wanted, std::int64_t update) {
  const auto g = got.values();
  const auto w = wanted.values();
  ASSERT_EQ(g.scale, w.scale) << "update " << update;
  ASSERT_EQ(g.growth_tracker, w.growth_tracker) << "update " << update;
  ASSERT_EQ(g.hysteresis_tracker, w.hysteresis_tracker) << "update " << update;
  ASSERT_EQ(g.skips, w.skips) << "update " << update;
}

TEST(ScaleOnCuda, equals_the_cpu_over_random_histories) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto found = at::rand({200}, generator).lt(0.4).to(at::kFloat);
  const auto found_on_cuda = found.to(kCuda);
  for (const std::int64_t hysteresis : {1, 3}) {
    for (const bool dynamic : {true, false}) {
      const ScaleLaw law{1.3, 0.6, 4, hysteresis, 0.5, 0x1p20, dynamic};
      ScaleState cpu({1024, 0, hysteresis, 0});
      ScaleState cuda({1024, 0, hysteresis, 0});
      cpu.place(at::kCPU);
      cuda.place(kCuda);
      for (std::int64_t i = 0; i < found.numel(); ++i) {
        cpu.advance(found[i], law);
        cuda.advance(i % 3 == 0 ? found[i] : found_on_cuda[i], law);
        expect_equal(cuda, cpu, i);
      }
    }
  }
}

TEST(ScaleOnCuda, is_captured_and_replayed) {
  const ScaleLaw law{2, 0.5, 2, 1, 0.5, 0x1p20, true};
  ScaleState state({1024, 0, 1, 0});
  state.place(kCuda);
  const auto found = at::zeros({1}, at::TensorOptions(kCuda));
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, 0));
  c10::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  state.advance(found, law);
  graph.capture_end();
  EXPECT_EQ(state.values().scale, 1024);
  for (const double wanted : {1024.0, 2048.0, 2048.0, 4096.0}) {
    graph.replay();
    EXPECT_EQ(state.values().scale, wanted);
  }
  found.fill_(1);
  graph.replay();
  EXPECT_EQ(state.values().scale, 2048);
}

}  // namespace
}  // namespace lockstep::amp
