// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "lockstep/version.h"
#include "tools/launched.h"

namespace lockstep::test {
namespace {

TEST(Doctor, TrainsOnThisMachineAndSaysSo) {
  Launched doctor({"doctor"});
  doctor.finish();
  EXPECT_EQ(doctor.code(), 0) << doctor.out() << doctor.err();
  for (const std::string text : {"lockstep " LOCKSTEP_VERSION, "all-reduce of 4 MiB over 2 ranks: right",
                                 "replicas are equal bit for bit", "Verdict: ready\n"}) {
    EXPECT_NE(doctor.out().find(text), std::string::npos) << text << " is not in\n" << doctor.out();
  }
  EXPECT_EQ(doctor.out().find("BAD"), std::string::npos) << doctor.out();
}

TEST(Doctor, ReportsWithoutATest) {
  Launched doctor({"doctor", "--no-test"});
  doctor.finish();
  EXPECT_EQ(doctor.code(), 0);
  EXPECT_NE(doctor.out().find("network: "), std::string::npos) << doctor.out();
  EXPECT_EQ(doctor.out().find("all-reduce"), std::string::npos) << doctor.out();
}

TEST(Doctor, IsListedAndRefusesWhatItDoesNotKnow) {
  Launched help({"--help"});
  help.finish();
  EXPECT_NE(help.out().find("doctor"), std::string::npos);
  Launched mistake({"doctor", "--cure"});
  mistake.finish();
  EXPECT_EQ(mistake.code(), 2);
  EXPECT_NE(mistake.err(), "");
}

}  // namespace
}  // namespace lockstep::test
