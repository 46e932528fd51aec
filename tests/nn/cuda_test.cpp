// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm on CUDA: its kernels beside the CPU's, a world of one beside torch, and two processes that share the
// device over Gloo beside BatchNorm on the joined batch. Needs one CUDA device.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "nn/nn_testing.h"
#include "nn/shared_statistics.h"
#include "support/process_ranks.h"

namespace lockstep {
namespace {

using test::Sizes;
using torch::nn::BatchNormOptions;

const at::Device kCuda(at::kCUDA, 0);

nn::Running running_on(at::Device device, std::optional<double> momentum, bool skip) {
  return {test::random({5}, 1).to(device), test::random({5}, 2).abs().to(device),
          at::full({}, 3, at::TensorOptions(at::kLong).device(device)), momentum, skip};
}

/// Messages of three ranks with 4, 0 and 70,000 values a channel.
at::Tensor messages_of(at::ScalarType dtype, double bad) {
  std::vector<at::Tensor> rows;
  for (const std::int64_t count : {4, 0, 70000}) {
    const auto mean = test::random({5}, static_cast<std::uint64_t>(count + 3)).to(dtype);
    rows.push_back(nn::message_of({count > 0 ? mean : mean * 0, mean.abs() * (count > 0 ? 1 : 0)}, count));
  }
  rows[0][2] += bad;
  return at::stack(rows);
}

TEST(SyncBatchNormCuda, the_merging_kernel_equals_the_cpus_merge) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const auto momentum : {std::optional<double>(0.1), std::optional<double>()}) {
      for (const bool skip : {true, false}) {
        for (const double bad : {0.0, kInfinity}) {
          const auto messages = messages_of(dtype, bad);
          auto a = running_on(at::kCPU, momentum, skip), b = running_on(kCuda, momentum, skip);
          for (auto* running : {&a, &b}) {
            running->mean = running->mean.to(dtype);
            running->var = running->var.to(dtype);
          }
          const auto version = b.mean._version();
          const auto cpu = nn::merge(messages, 1e-5, a), cuda = nn::merge(messages.to(kCuda), 1e-5, b);
          EXPECT_GT(b.mean._version(), version);
          const auto close = [](const at::Tensor& x, const at::Tensor& y) {
            EXPECT_TRUE(at::allclose(x, y.cpu(), 1e-6, 1e-6, /*equal_nan=*/true)) << x << y;
          };
          close(cpu.moments.mean, cuda.moments.mean);
          close(cpu.moments.var, cuda.moments.var);
          close(cpu.invstd, cuda.invstd);
          close(a.mean, b.mean);
          close(a.var, b.var);
          EXPECT_TRUE(at::equal(cpu.counts, cuda.counts.cpu()));
          EXPECT_TRUE(at::equal(a.batches, b.batches.cpu()));
        }
      }
    }
  }
}

TEST(SyncBatchNormCuda, a_message_is_the_cpus) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const nn::Moments moments{test::random({1000}, 1).to(dtype), test::random({1000}, 2).to(dtype)};
    const auto cuda = nn::message_of({moments.mean.to(kCuda), moments.var.to(kCuda)}, 123456789);
    EXPECT_TRUE(at::equal(nn::message_of(moments, 123456789), cuda.cpu()));
  }
}

TEST(SyncBatchNormCuda, a_world_of_one_is_batch_norm_bit_by_bit) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    torch::nn::BatchNorm2d plain(65);
    nn::SyncBatchNorm own(65);
    const auto type = dtype == at::kDouble ? at::kDouble : at::kFloat;
    plain->to(kCuda, type);
    own->to(kCuda, type);
    const auto x = test::random({4, 65, 7, 5}, 1).to(kCuda).to(dtype),
               dy = test::random({4, 65, 7, 5}, 2).to(kCuda).to(dtype);
    const auto a = test::results_of(*own, x, dy), b = test::results_of(*plain, x, dy);
    EXPECT_TRUE(at::equal(a.output, b.output) && at::equal(a.input_grad, b.input_grad) &&
                at::equal(a.weight_grad, b.weight_grad) && at::equal(a.running_mean, b.running_mean) &&
                at::equal(a.running_var, b.running_var) && at::equal(a.batches, b.batches));
  }
}

at::Tensor laid(const at::Tensor& tensor, bool channels_last) {
  const bool can = channels_last && tensor.dim() == 4;
  return tensor.to(kCuda).contiguous(can ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

void compare(const World& world, std::int64_t channels, const Sizes& parts, const Sizes& rest, at::ScalarType dtype,
             bool affine) {
  const BatchNormOptions options = BatchNormOptions(channels).affine(affine);
  const auto batch = test::make_batch(channels, parts, rest, dtype, 7);
  const auto expected = test::reference(options, batch, 3);
  for (int layout = 0; layout < 4; ++layout) {
    SCOPED_TRACE(core::str(dtype, batch.input.sizes(), " in ", parts, " layout ", layout, " affine ", affine));
    auto module = test::made_for(world, options, dtype, 3);
    module->to(kCuda);
    test::expect_equal_to_joined(world, *module, batch, laid(batch.part_of(batch.input, world.rank()), layout / 2),
                                 laid(batch.part_of(batch.gradient, world.rank()), layout % 2), expected);
  }
}

int both(World& world) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    for (const std::int64_t channels : {1, 3, 65, 130}) {
      compare(world, channels, {3, 5}, {4, 3}, dtype, true);
      compare(world, channels, {0, 6}, {4, 3}, dtype, false);
      compare(world, channels, {5, 6}, {}, dtype, true);
    }
  }
  auto module = test::made_for(world, 3, at::kFloat, 1);
  module->to(kCuda);
  const auto error = test::input_error([&] { module->forward(at::ones({world.rank(), 3}, kCuda)); });
  EXPECT_TRUE(test::mentions(error, "one value a channel on all ranks together")) << error;
  EXPECT_EQ(module->num_batches_tracked.item<std::int64_t>(), 0);
  return testing::UnitTest::GetInstance()->Failed() ? 3 : 0;
}
const test::RankProgram kBoth("sync_batch_norm_on_cuda", both);

TEST(SyncBatchNormCuda, two_processes_equal_batch_norm_on_the_joined_batch) {
  test::ProcessRanks ranks(
      {.program = "sync_batch_norm_on_cuda", .size = 2, .environment = {{"LOCKSTEP_DEVICE", "cuda:0"}}});
  for (const auto& end : ranks.finish(std::chrono::seconds(90))) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
  }
}

/// Without the exchange, forward and backward can be captured: nothing is read by the host.
TEST(SyncBatchNormCuda, the_merge_can_be_captured) {
  const auto messages = messages_of(at::kFloat, 0).to(kCuda);
  auto running = running_on(kCuda, 0.1, true), eager = running_on(kCuda, 0.1, true);
  nn::merge(messages, 1e-5, eager);
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  nn::merge(messages, 1e-5, running);
  graph.capture_end();
  graph.replay();
  c10::cuda::getCurrentCUDAStream().synchronize();
  EXPECT_TRUE(at::equal(running.mean, eager.mean) && at::equal(running.batches, eager.batches));
}

}  // namespace
}  // namespace lockstep
