// SPDX-License-Identifier: Apache-2.0
// Trial B11: backward under a stream of the user's; whoever reads gradients there must not race with the reduction.
// Needs one CUDA device, which two processes share over Gloo: autograd has one thread a device, so ranks that are
// threads would wait for each other in it.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"
#include "support/process_ranks.h"

namespace lockstep {
namespace {

void train_under_side_stream(World& world, bool construct_there) {
  const auto stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, 0);
  c10::cuda::OptionalCUDAStreamGuard guard;
  auto net = test::mlp(static_cast<std::uint64_t>(world.rank()), 512, 1024, 512);
  net->to(world.device());
  if (construct_there) {
    guard.reset_stream(stream);
  }
  DistributedDataParallel ddp(net, world);
  guard.reset_stream(stream);
  for (std::uint64_t step = 0; step < 50; ++step) {
    net->zero_grad();
    const auto seed = 10 * step + static_cast<std::uint64_t>(world.rank());
    ddp(test::random({64, 512}, seed).to(world.device())).square().mean().backward();
    for (const auto& parameter : net->parameters()) {
      const auto average = parameter.grad().clone();
      world.all_reduce(average, ReduceOp::Average, {"what backward has left"}).wait();
      EXPECT_TRUE(at::equal(average, parameter.grad())) << "step " << step;
    }
  }
}

int train_under_side_streams(World& world) {
  for (const bool construct_there : {true, false}) {
    train_under_side_stream(world, construct_there);
  }
  return testing::UnitTest::GetInstance()->Failed() ? 3 : 0;
}
const test::RankProgram kSideStreams("ddp_under_side_streams", train_under_side_streams);

TEST(CudaStreams, B11_gradients_are_whole_on_the_stream_that_called_backward) {
  test::ProcessRanks ranks(
      {.program = "ddp_under_side_streams", .size = 2, .environment = {{"LOCKSTEP_DEVICE", "cuda:0"}}});
  for (const auto& end : ranks.finish(std::chrono::seconds(60))) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
  }
}

}  // namespace
}  // namespace lockstep
