// SPDX-License-Identifier: Apache-2.0
#include "lockstep/run_options.h"

#include <gtest/gtest.h>

#include <sstream>

#include "lockstep/error.h"

namespace lockstep::launcher {
namespace {

using Words = std::vector<std::string>;

RunOptions parse(const Words& words) {
  std::ostringstream out;
  return parse_run_options(words, std::nullopt, out).value();
}

std::string error_of(const Words& words) {
  try {
    parse(words);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunOptions, Defaults) {
  const auto options = parse({"prog"});
  EXPECT_EQ(options.ranks, 1);
  EXPECT_EQ(options.nodes, 1);
  EXPECT_EQ(options.master_addr, "127.0.0.1");
  EXPECT_EQ(options.master_port, 0);
  EXPECT_TRUE(options.tags);
  EXPECT_EQ(options.notice, std::chrono::seconds(2));
  EXPECT_EQ(options.grace, std::chrono::seconds(10));
}

TEST(RunOptions, BothNamesOfTheNumberOfRanks) {
  EXPECT_EQ(parse({"-n", "3", "prog"}).ranks, 3);
  EXPECT_EQ(parse({"-n4", "prog"}).ranks, 4);
  EXPECT_EQ(parse({"--nproc-per-node", "5", "prog"}).ranks, 5);
  EXPECT_EQ(parse({"--nproc-per-node=6", "prog"}).ranks, 6);
}

TEST(RunOptions, WhatFollowsTheProgramIsTheProgramsOwn) {
  const Words program{"prog", "-n", "9", "--help", "--", "--grace", "x", "", "++", "--no-tag"};
  Words words{"-n", "2"};
  words.insert(words.end(), program.begin(), program.end());
  EXPECT_EQ(parse(words).program, program);
  EXPECT_EQ(parse(words).ranks, 2);
  words.insert(words.begin() + 2, "--");
  EXPECT_EQ(parse(words).program, program);
  EXPECT_TRUE(parse(words).tags);
}

TEST(RunOptions, TimesAreSecondsWithFractions) {
  const auto options = parse({"--notice", "0.25", "--grace", "0", "prog"});
  EXPECT_EQ(options.notice, std::chrono::milliseconds(250));
  EXPECT_EQ(options.grace, std::chrono::milliseconds(0));
  for (const char* text : {"-1", "soon", "1s", "nan", "inf", "1e9", ""}) {
    EXPECT_NE(error_of({std::string("--grace=") + text, "prog"}), "no error") << text;
  }
}

TEST(RunOptions, PortsOutOfRangeAreRefused) {
  EXPECT_EQ(parse({"--master-port", "65535", "prog"}).master_port, 65535);
  for (const char* port : {"66660", "-1", "abc", "1.5"}) {
    EXPECT_NE(error_of({std::string("--master-port=") + port, "prog"}).find("[lockstep.run] --master-port"),
              std::string::npos)
        << port;
  }
}

TEST(RunOptions, AddressesLoseTheirBrackets) {
  EXPECT_EQ(parse({"--master-addr", "[::1]", "prog"}).master_addr, "::1");
  EXPECT_EQ(parse({"--master-addr", "head.local", "prog"}).master_addr, "head.local");
  for (const char* address : {"[]", "a b", "http://x", " "}) {
    EXPECT_NE(error_of({std::string("--master-addr=") + address, "prog"}), "no error") << address;
  }
}

TEST(RunOptions, SeveralMachinesNeedAnAddressAndAPort) {
  const Words machines{"--nnodes", "2", "--node-rank", "1"};
  auto words = machines;
  words.push_back("prog");
  EXPECT_NE(error_of(words).find("--master-port"), std::string::npos);
  words = machines;
  words.insert(words.end(), {"--master-port", "29500", "prog"});
  EXPECT_NE(error_of(words).find("--master-addr"), std::string::npos);
  words.insert(words.begin(), {"--master-addr", "head"});
  EXPECT_EQ(parse(words).node_rank, 1);
  EXPECT_EQ(parse(words).nodes, 2);
}

TEST(RunOptions, AMachineNumberBeyondTheMachinesIsRefused) {
  EXPECT_NE(error_of({"--node-rank", "1", "prog"}).find("--node-rank is out of range"), std::string::npos);
}

TEST(RunOptions, MistakesAreNamed) {
  EXPECT_NE(error_of({}).find("no program to run"), std::string::npos);
  EXPECT_NE(error_of({"-n", "2"}).find("no program to run"), std::string::npos);
  EXPECT_NE(error_of({"-n", "2", "--"}).find("no program to run"), std::string::npos);
  EXPECT_NE(error_of({"--bogus", "prog"}).find("'--bogus'"), std::string::npos);
  EXPECT_NE(error_of({"--bogus", "-n", "2", "prog"}).find("'--bogus'"), std::string::npos);
  EXPECT_TRUE(error_of({"prog", "-n"}) == "no error");
  EXPECT_TRUE(error_of({"-n"}).starts_with("[lockstep.run] "));
}

TEST(RunOptions, HelpNamesEveryFlag) {
  std::ostringstream out;
  EXPECT_FALSE(parse_run_options({"--help"}, std::nullopt, out));
  for (const char* flag : {"-n", "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port",
                           "--notice", "--grace", "--no-tag", "Usage: lockstep run"}) {
    EXPECT_NE(out.str().find(flag), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace lockstep::launcher
