// SPDX-License-Identifier: Apache-2.0
// Runs the tests of one file (`--file=module/x_test.cpp`), or all. A skipped test fails the run unless
// `--allow-skips` is given: a test that does not run proves nothing.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <sstream>
#include <string>
#include <string_view>

#include "support/process_ranks.h"

namespace {

std::string filter_for(std::string_view file) {
  std::string filter;
  const auto& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const auto& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const auto& test = *suite.GetTestInfo(t);
      if (std::string_view(test.file()).ends_with(file)) {
        filter += std::string(suite.name()) + "." + test.name() + ":";
      }
    }
  }
  return filter;
}

class SkipsFail : public testing::EmptyTestEventListener {
 public:
  int skipped = 0;

 private:
  void OnTestEnd(const testing::TestInfo& test) override { skipped += test.result()->Skipped() ? 1 : 0; }
};

// Two threads that make a process's first vector-math call at once can get wrong low bits, so the first call is
// made here, before any rank runs as a thread.
void warm_up() {
  auto x = at::ones({8, 8}).requires_grad_();
  at::tanh(at::matmul(x, x)).exp().sum().backward();
}

// LibTorch builds tables at a process's first archives, under guards in code that ThreadSanitizer does not see.
void touch_archives() {
  torch::serialize::OutputArchive out;
  for (const auto* key : {"first", "second"}) {
    torch::serialize::OutputArchive inner(out.compilation_unit());
    inner.write("x", at::ones({1}));
    out.write(key, inner);
  }
  std::stringstream file;
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = lockstep::test::run_rank_program(argc, argv)) {
    return *code;
  }
  testing::InitGoogleTest(&argc, argv);
  bool allow_skips = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--file=")) {
      const auto filter = filter_for(arg.substr(7));
      if (filter.empty()) {
        std::fprintf(stderr, "no test in %s\n", argv[i] + 7);
        return 1;
      }
      testing::GTEST_FLAG(filter) = filter;
    }
    allow_skips = allow_skips || arg == "--allow-skips";
  }
  warm_up();
  touch_archives();
  auto* skips = new SkipsFail;
  testing::UnitTest::GetInstance()->listeners().Append(skips);
  const int result = RUN_ALL_TESTS();
  if (skips->skipped > 0 && !allow_skips) {
    std::fprintf(stderr, "%d skipped tests count as failures here\n", skips->skipped);
    return 1;
  }
  return result;
}
