// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "lockstep/comm/launch.h"

namespace lockstep {
namespace {

// A variable of the environment for one scope; no thread runs beside these tests.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

class RunMain : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::string error_file() const {
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string path_ = testing::TempDir() + "lockstep_run_main_" + std::to_string(::getpid()) + ".json";
  Variable variable_{"TORCHELASTIC_ERROR_FILE", path_};
};

TEST_F(RunMain, gives_the_function_the_world_of_the_environment) {
  int size = 0;
  EXPECT_EQ(run_main([&](World& world) { size = world.size(); }), 0);
  EXPECT_EQ(size, 1);
  EXPECT_EQ(error_file(), "");
}

TEST_F(RunMain, makes_an_exception_an_exit_code_and_a_note_for_the_launcher) {
  EXPECT_EQ(run_main([](World&) { throw std::runtime_error("no bread left"); }), 1);
  EXPECT_NE(error_file().find("[rank 0] no bread left"), std::string::npos) << error_file();
}

TEST_F(RunMain, reports_an_environment_that_makes_no_world) {
  const Variable rank("RANK", "0");
  bool called = false;
  EXPECT_EQ(run_main([&](World&) { called = true; }), 1);
  EXPECT_FALSE(called);
  EXPECT_NE(error_file().find("WORLD_SIZE"), std::string::npos) << error_file();
}

}  // namespace
}  // namespace lockstep
