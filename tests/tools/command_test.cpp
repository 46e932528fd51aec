// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>

#include "lockstep/version.h"
#include "tools/launched.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen((command + " 2>&1").c_str(), "r"), ::pclose);
  std::string text;
  std::array<char, 4096> block;
  while (const auto size = std::fread(block.data(), 1, block.size(), pipe.get())) {
    text.append(block.data(), size);
  }
  return text;
}

TEST(Command, VersionAndHelp) {
  Launched version({"--version"});
  version.finish();
  EXPECT_EQ(version.code(), 0);
  EXPECT_EQ(version.out(), "lockstep " LOCKSTEP_VERSION "\n");
  Launched help({"--help"});
  help.finish();
  EXPECT_EQ(help.code(), 0);
  EXPECT_NE(help.out().find("Usage: lockstep"), std::string::npos);
}

TEST(Command, MistakesAreTwo) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{}, {"--bogus"}, {"run"}, {"run", "-n", "x", "true"}}) {
    Launched mistake(words);
    mistake.finish();
    EXPECT_EQ(mistake.code(), 2);
    EXPECT_EQ(mistake.out(), "");
    EXPECT_NE(mistake.err(), "");
  }
}

TEST(Command, AnUnknownCommandIsNamedWithTheKnownOnes) {
  for (const std::string command : {"fly", "../fly"}) {
    Launched unknown({command});
    unknown.finish();
    EXPECT_EQ(unknown.code(), 127);
    EXPECT_NE(unknown.err().find("[lockstep] unknown command; got '" + command + "', expected one of: run"),
              std::string::npos)
        << unknown.err();
  }
}

// The command alone in a folder, with a companion beside it.
TEST(Command, OtherCommandsAreProgramsBesideIt) {
  const TempFolder folder;
  fs::copy_file(built("lockstep"), folder.path() + "/lockstep");
  const std::string companion = folder.path() + "/lockstep-greet";
  std::ofstream(companion) << "#!/bin/sh\necho hello \"$@\"\nexit 7\n";
  EXPECT_NE(output_of(folder.path() + "/lockstep greet").find("Permission denied"), std::string::npos);
  fs::permissions(companion, fs::perms::owner_all);
  EXPECT_EQ(output_of(folder.path() + "/lockstep greet a 'b c' --help; echo $?"), "hello a b c --help\n7\n");
  EXPECT_NE(output_of(folder.path() + "/lockstep gret").find("one of: run, greet"), std::string::npos);
  const auto help = output_of(folder.path() + "/lockstep --help");
  EXPECT_NE(help.find("\n  run        Start"), std::string::npos) << help;
  EXPECT_NE(help.find("\n  greet"), std::string::npos) << help;
  EXPECT_EQ(help.find("doctor"), std::string::npos) << "it is not in this folder";
}

TEST(Command, DoesNotLoadTorch) {
  const auto libraries = output_of("ldd " + built("lockstep"));
  ASSERT_NE(libraries.find("libc.so"), std::string::npos) << libraries;
  EXPECT_EQ(libraries.find("torch"), std::string::npos) << libraries;
  EXPECT_EQ(libraries.find("c10"), std::string::npos) << libraries;
}

// How long is reported; the limit is wide, since a busy machine is no fault.
TEST(Command, StartsInMilliseconds) {
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    Launched launched({"run", "-n", "2", "true"});
    launched.finish();
    EXPECT_EQ(launched.code(), 0);
    seconds.push_back(launched.seconds());
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("run -n 2 true: median %.1f ms, least %.1f ms\n", seconds[4] * 1e3, seconds[0] * 1e3);
  EXPECT_LT(seconds[0], 0.5);
}

}  // namespace
}  // namespace lockstep::test
