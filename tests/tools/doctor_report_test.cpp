// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sstream>

#include "lockstep/doctor/report.h"

namespace lockstep::doctor {
namespace {

TEST(DoctorReport, NotesDoNotMakeAMachineUnready) {
  const std::vector<Section> sections{{"Build", {{Grade::ok, "fine"}, {Grade::note, "old"}}}, {"CUDA", {}}};
  EXPECT_EQ(verdict(sections), "ready");
  EXPECT_EQ(exit_code(sections), 0);
}

TEST(DoctorReport, TheVerdictTellsEveryFault) {
  const std::vector<Section> sections{{"Build", {{Grade::bad, "wrong torch"}}},
                                      {"Test", {{Grade::ok, "sum right"}, {Grade::bad, "replicas differ"}}}};
  EXPECT_EQ(verdict(sections), "not ready: wrong torch; replicas differ");
  EXPECT_EQ(exit_code(sections), 1);
}

TEST(DoctorReport, FaultsStandOut) {
  std::ostringstream out;
  print(out, {"Test", {{Grade::ok, "a"}, {Grade::note, "b"}, {Grade::bad, "c"}}});
  EXPECT_EQ(out.str(), "Test\n  ok    a\n  note  b\n  BAD   c\n");
}

}  // namespace
}  // namespace lockstep::doctor
