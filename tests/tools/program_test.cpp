// SPDX-License-Identifier: Apache-2.0
#include "lockstep/program.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

class FindProgram : public testing::Test {
 protected:
  FindProgram() {
    std::string name = testing::TempDir() + "/find_program_XXXXXX";
    root_ = ::mkdtemp(name.data());
    fs::create_directories(root_ / "first");
    fs::create_directories(root_ / "second");
    path_ = (root_ / "first").string() + ":" + (root_ / "second").string();
  }
  ~FindProgram() override { fs::remove_all(root_); }

  std::string make(const std::string& name, bool executable) {
    const auto file = root_ / name;
    std::ofstream(file) << "#!/bin/sh\n";
    fs::permissions(file, fs::perms::owner_exec, executable ? fs::perm_options::add : fs::perm_options::remove);
    return file.string();
  }

  int code_for(const std::string& name) {
    try {
      find_program(name, path_);
    } catch (const ProgramError& error) {
      text_ = error.what();
      return error.exit_code();
    }
    return 0;
  }

  fs::path root_;
  std::string path_;
  std::string text_;
};

TEST_F(FindProgram, TheFirstExecutableOfThePathWins) {
  make("first/tool", false);
  const auto second = make("second/tool", true);
  EXPECT_EQ(find_program("tool", path_), second);
  const auto first = make("first/tool", true);
  EXPECT_EQ(find_program("tool", path_), first);
}

TEST_F(FindProgram, ANameWithASlashIsTakenAsItIs) {
  const auto file = make("first/tool", true);
  EXPECT_EQ(find_program(file, ""), file);
}

TEST_F(FindProgram, MissingIs127) {
  EXPECT_EQ(code_for("tool"), 127);
  EXPECT_NE(text_.find("[lockstep.run] program not found; got 'tool'"), std::string::npos) << text_;
  EXPECT_EQ(code_for(path_ + "/nowhere"), 127);
  EXPECT_EQ(code_for(""), 127);
}

TEST_F(FindProgram, FoldersAreNoPrograms) {
  fs::create_directories(root_ / "first" / "tool");
  EXPECT_EQ(code_for((root_ / "first").string()), 126);
  EXPECT_EQ(code_for("tool"), 127);
}

TEST_F(FindProgram, NotExecutableIs126WithAdvice) {
  const auto file = make("first/tool", false);
  EXPECT_EQ(code_for("tool"), 126);
  EXPECT_EQ(code_for(file), 126);
  EXPECT_NE(text_.find("chmod"), std::string::npos) << text_;
}

TEST(FailExec, AScriptWithoutItsFirstLineIsExplained) {
  try {
    fail_exec("./script", ENOEXEC);
  } catch (const ProgramError& error) {
    EXPECT_EQ(error.exit_code(), 126);
    EXPECT_NE(std::string(error.what()).find("#!/bin/sh"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::launcher
