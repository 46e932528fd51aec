// SPDX-License-Identifier: Apache-2.0
// The digest kernel beside the host's loop, and a check whose state lies on a device. Needs one CUDA device: ranks
// share it.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include "core/digest.h"
#include "replica/training.h"

namespace lockstep {
namespace {

using core::digest;
using test::Training;
using test::Victim;

const c10::Device kCuda(c10::kCUDA, 0);

void expect_same(const at::Tensor& tensor) {
  EXPECT_EQ(digest(tensor), digest(tensor.to(kCuda))) << tensor.toString() << " " << tensor.sizes();
}

TEST(CudaDigest, is_the_host_s_for_every_size_and_alignment) {
  const auto bytes = at::randint(0, 256, {200'000}, at::kByte);
  const auto on_device = bytes.to(kCuda);
  for (const std::int64_t size : {0, 1, 7, 8, 9, 15, 16, 17, 4095, 32'767, 32'768, 32'769, 65'536, 131'075}) {
    for (const std::int64_t offset : {0, 1, 2, 4, 8, 16, 33}) {
      EXPECT_EQ(digest(bytes.narrow(0, offset, size)), digest(on_device.narrow(0, offset, size)))
          << size << " " << offset;
    }
  }
}

TEST(CudaDigest, is_the_host_s_for_every_dtype_and_layout) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    expect_same(at::randn({3, 5, 7, 9}, at::kDouble).to(dtype));
  }
  expect_same(at::arange(1000, at::kLong));
  expect_same(at::randn({100}).gt(0));
  expect_same(at::randn({8, 6}).t());
  expect_same(at::randn({2, 8, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(CudaDigest, of_more_tensors_than_one_launch_takes) {
  std::vector<at::Tensor> here;
  std::vector<at::Tensor> there;
  for (std::int64_t i = 0; i < 1000; ++i) {
    here.push_back(at::randn({i % 37}));
    there.push_back(here.back().to(kCuda));
  }
  EXPECT_TRUE(core::digests_of(here).equal(core::digests_of(there).cpu()));
}

TEST(CudaDigest, can_be_captured_and_replayed) {
  const auto stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  const auto tensor = at::randn({1 << 16}, kCuda);
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const auto sums = core::digests_of({tensor});
  graph.capture_end();
  for (int replay = 0; replay < 3; ++replay) {
    tensor.add_(1);
    graph.replay();
    EXPECT_EQ(static_cast<std::uint64_t>(sums.item<std::int64_t>()), digest(tensor.cpu()));
  }
}

void run_on_device(int ranks, const std::function<void(World&)>& fn) {
  auto options = test::quick_options();
  options.device = kCuda;
  options.backend = BackendKind::Gloo;
  run_ranks(ranks, fn, options);
}

void flip_on_device(const Victim& victim, std::int64_t flat, std::int64_t bit) {
  const auto copy = victim.get().detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true).contiguous();
  test::flip_bit(copy, flat, bit);
  test::restore(victim, copy);
}

// The verdict of one call is read in the next: nothing waits for the device before.
TEST(CudaReplicaCheck, finds_and_names_every_kind_of_state_one_call_later) {
  run_on_device(3, [](World& world) {
    Training training(world, {.on_mismatch = OnMismatch::Resync, .buffers = CheckedBuffers::All});
    training.train_alike();
    training.check_.step();
    for (const auto& victim : test::victims_of(training)) {
      const auto saved = victim.get().clone();
      if (world.rank() == 1) {
        flip_on_device(victim, victim.get().numel() - 1, 2);
      }
      training.check_.step();
      training.check_.step();
      const auto& report = training.check_.last_report();
      ASSERT_TRUE(report && report->step == training.check_.steps() - 1) << victim.name;
      EXPECT_EQ(report->differing, 1);
      EXPECT_EQ(report->differences[0].kind, victim.kind);
      EXPECT_EQ(report->differences[0].name, victim.name);
      EXPECT_EQ(report->differences[0].ranks, std::vector<int>{1});
      EXPECT_TRUE(victim.get().equal(saved)) << "not resynchronised: " << victim.name;
      training.check_.step();  // of the comparison that found the fault's healing
    }
  });
}

TEST(CudaReplicaCheck, clean_training_raises_no_alarm) {
  run_on_device(2, [](World& world) {
    Training training(world, {.buffers = CheckedBuffers::All});
    for (int step = 0; step < 100; ++step) {
      training.train_alike();
      ASSERT_NO_THROW(training.check_.step());
    }
    EXPECT_FALSE(training.check_.verdict().has_value());
  });
}

}  // namespace
}  // namespace lockstep
