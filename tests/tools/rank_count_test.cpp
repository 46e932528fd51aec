// SPDX-License-Identifier: Apache-2.0
#include "lockstep/rank_count.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "lockstep/error.h"

namespace lockstep::launcher {
namespace {

TEST(VisibleGpus, AllWithoutTheVariable) {
  EXPECT_EQ(visible_gpus(8, std::nullopt), 8);
}

TEST(VisibleGpus, TheListCounts) {
  EXPECT_EQ(visible_gpus(8, "0"), 1);
  EXPECT_EQ(visible_gpus(8, "3,1,7"), 3);
  EXPECT_EQ(visible_gpus(8, "GPU-8932f937,GPU-1"), 2);
  EXPECT_EQ(visible_gpus(8, "MIG-4f2e"), 1);
}

TEST(VisibleGpus, TheListEndsAtItsFirstUnknownEntry) {
  EXPECT_EQ(visible_gpus(8, ""), 0);
  EXPECT_EQ(visible_gpus(8, "-1"), 0);
  EXPECT_EQ(visible_gpus(8, "0,1,-1,2"), 2);
  EXPECT_EQ(visible_gpus(2, "0,5,1"), 1);
  EXPECT_EQ(visible_gpus(8, "none"), 0);
  EXPECT_EQ(visible_gpus(8, "0,99999999999999999999"), 1);
}

TEST(VisibleGpus, AListMakesNoGpus) {
  EXPECT_EQ(visible_gpus(0, "0,1"), 0);
}

TEST(CountRanks, NumbersAndProcessors) {
  EXPECT_EQ(count_ranks("1", std::nullopt), 1);
  EXPECT_EQ(count_ranks("16", std::nullopt), 16);
  cpu_set_t set;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(count_ranks("cpu", std::nullopt), CPU_COUNT(&set));
  // With an empty list no GPU can be seen, whatever the machine has.
  EXPECT_EQ(count_ranks("auto", ""), CPU_COUNT(&set));
}

TEST(CountRanks, RefusesWhatIsNoNumber) {
  for (const char* text : {"", "0", "-1", "1.5", "two", "2x", " 2", "99999999999999999999", "GPU"}) {
    EXPECT_THROW(count_ranks(text, std::nullopt), InputError) << text;
  }
}

TEST(CountRanks, GpuWithoutOneSaysWhy) {
  try {
    count_ranks("gpu", "");
    FAIL() << "an empty list shows no GPU";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA_VISIBLE_DEVICES"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::launcher
