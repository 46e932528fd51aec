// SPDX-License-Identifier: Apache-2.0
#include "lockstep/error_file.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

TEST(ErrorFile, ReadsWhatTorchrunsRecordWrites) {
  const auto report = parse_error_report(
      R"({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "...", "timestamp": "1700000000"}}})");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->text, "ValueError: bad");
  EXPECT_EQ(report->timestamp, 1.7e9);
}

TEST(ErrorFile, ReadsThePlainForm) {
  const auto report = parse_error_report(R"({"message": "bad", "timestamp": 12.5})");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->text, "bad");
  EXPECT_EQ(report->timestamp, 12.5);
}

TEST(ErrorFile, WithoutATimeThereIsNone) {
  EXPECT_EQ(parse_error_report(R"({"message": "bad"})")->timestamp, std::nullopt);
  EXPECT_EQ(parse_error_report(R"({"message": {"message": "bad"}})")->timestamp, std::nullopt);
  EXPECT_EQ(parse_error_report(R"({"message": "bad", "timestamp": "noon"})")->timestamp, std::nullopt);
  EXPECT_EQ(parse_error_report(R"({"message": "bad", "timestamp": [1]})")->timestamp, std::nullopt);
}

TEST(ErrorFile, WhateverElseIsText) {
  for (const std::string text : {"just words", "{\"message\":", "[1, 2]", "{\"other\": 1}", "{\"message\": {}}",
                                 "{\"message\": 7}", "\"quoted\""}) {
    const auto report = parse_error_report(" " + text + "\n");
    ASSERT_TRUE(report) << text;
    EXPECT_EQ(report->text, text);
  }
}

TEST(ErrorFile, BlankOrMissingIsNothing) {
  EXPECT_FALSE(parse_error_report(""));
  EXPECT_FALSE(parse_error_report(" \n\t"));
  EXPECT_FALSE(read_error_file("/nonexistent/error.json"));
}

}  // namespace
}  // namespace lockstep::launcher
