// SPDX-License-Identifier: Apache-2.0
// Join where the roll call and the shadowed buckets live on a device. Needs one CUDA device, which two processes share.
#include <gtest/gtest.h>

#include "ddp/uneven.h"
#include "support/process_ranks.h"

namespace lockstep::uneven {
namespace {

int train(World& world) {
  for (const auto divisor : {JoinDivisor::Initial, JoinDivisor::Live}) {
    for (const auto unused : {UnusedParameters::Error, UnusedParameters::Detect}) {
      test::OneNumber model(world, {.unused = unused}, c10::Device(c10::kCUDA, 0));
      model.train(world.rank() == 0 ? 5 : 3, 1, 100 * world.rank(), {.divisor = divisor});
      const float alone = divisor == JoinDivisor::Live ? 1.0F : 0.5F;
      EXPECT_EQ(model.gradients, (std::vector<float>{1, 1, 1, alone, alone}));
      EXPECT_EQ(model.seen.item<float>(), 4);
      EXPECT_EQ(model.ddp.difference(), "");
    }
  }
  return testing::UnitTest::GetInstance()->Failed() ? 3 : 0;
}
const test::RankProgram kTrain("join_on_cuda", train);

TEST(JoinCuda, E4_two_processes_on_one_device) {
  test::ProcessRanks ranks({.program = "join_on_cuda", .size = 2, .environment = {{"LOCKSTEP_DEVICE", "cuda:0"}}});
  for (const auto& end : ranks.finish(std::chrono::seconds(60))) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
  }
}

TEST(JoinCuda, alone_on_a_device) {
  WorldOptions options;
  options.device = c10::Device(c10::kCUDA, 0);
  const World world(options);
  test::OneNumber model(world, {}, *options.device);
  model.train(3, 2, 0, {.divisor = JoinDivisor::Live});
  EXPECT_EQ(model.gradients, std::vector<float>(3, 2));
}

}  // namespace
}  // namespace lockstep::uneven
