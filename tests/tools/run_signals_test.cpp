// SPDX-License-Identifier: Apache-2.0
// Signals sent to the launcher.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/launched.h"

namespace lockstep::test {
namespace {

// Both ranks remember `signal` and say when it comes.
std::vector<std::string> listening_to(int signal) {
  return actors({"-n", "2"}, {"remember=" + std::to_string(signal), "out=ready", "await=30", "exit=0"});
}

void await_both(Launched& launched) {
  launched.await_output("[0] ready");
  launched.await_output("[1] ready");
}

TEST(RunSignals, ThoseThatEndProgramsReachEveryRankAndGive128AndTheSignal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    Launched launched(listening_to(signal));
    await_both(launched);
    launched.send(signal);
    launched.finish();
    EXPECT_EQ(launched.code(), 128 + signal);
    const std::vector<std::string> expected{"ready", "got signal " + std::to_string(signal)};
    EXPECT_EQ(lines_with(launched.out(), "[0] "), expected);
    EXPECT_EQ(lines_with(launched.out(), "[1] "), expected);
    EXPECT_TRUE(holds(launched.err(), "[lockstep.run] ended by signal " + std::to_string(signal))) << launched.err();
    EXPECT_TRUE(holds(launched.err(), "ranks 0, 1: exited with code 0 after being told to end")) << launched.err();
  }
}

TEST(RunSignals, ProgramsWithoutAHandlerJustEnd) {
  Launched launched(actors({"-n", "3"}, {"out=ready", "sleep=60"}));
  launched.await_output("[2] ready");
  launched.send(SIGINT);
  launched.finish();
  EXPECT_EQ(launched.code(), 130);
  EXPECT_LT(launched.seconds(), 10);
}

TEST(RunSignals, TheGraceIsHonoured) {
  Launched patient(
      actors({"-n", "2", "--grace", "20"}, {"remember=15", "out=ready", "await=30", "sleep=1", "out=saved", "exit=0"}));
  await_both(patient);
  patient.send(SIGTERM);
  patient.finish();
  EXPECT_EQ(patient.code(), 143);
  EXPECT_TRUE(holds(patient.out(), "[0] saved") && holds(patient.out(), "[1] saved")) << patient.out();

  Launched short_of_time(
      actors({"-n", "2", "--grace", "0.3"}, {"remember=15", "out=ready", "await=30", "sleep=60", "out=saved"}));
  await_both(short_of_time);
  short_of_time.send(SIGTERM);
  short_of_time.finish(std::chrono::seconds(20));
  EXPECT_EQ(short_of_time.code(), 143);
  EXPECT_FALSE(holds(short_of_time.out(), "saved"));
  EXPECT_TRUE(holds(short_of_time.err(), "ranks 0, 1: killed by signal 9 (Killed) after being told to end"))
      << short_of_time.err();
}

TEST(RunSignals, ASecondInterruptKillsAtOnce) {
  Launched launched(actors({"-n", "2", "--grace", "60"}, {"remember=2", "out=ready", "await=30", "sleep=60"}));
  await_both(launched);
  launched.send(SIGINT);
  launched.await_output("[0] got signal 2");
  launched.await_output("[1] got signal 2");
  launched.send(SIGINT);
  launched.finish(std::chrono::seconds(20));
  EXPECT_EQ(launched.code(), 130);
}

TEST(RunSignals, UserSignalsArePassedOnAndEndNothing) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    Launched launched(listening_to(signal));
    await_both(launched);
    launched.send(signal);
    launched.finish();
    EXPECT_EQ(launched.code(), 0);
    EXPECT_TRUE(holds(launched.out(), "[1] got signal " + std::to_string(signal))) << launched.out();
  }
}

TEST(RunSignals, AFailureBeforeTheSignalKeepsItsCode) {
  Launched launched(actors({"-n", "2", "--notice", "30"}, {"0:exit=3", "events=1", "sleep=60"}));
  launched.await_output("[1] heard rank 0 exited with code 3");
  launched.send(SIGTERM);
  launched.finish();
  EXPECT_EQ(launched.code(), 3);
}

TEST(RunSignals, CtrlZStopsTheRanksAndFgResumesThem) {
  const TempFolder folder;
  Launched launched(actors({"-n", "2"}, {"pid=" + folder.path(), "remember=10", "out=ready", "await=30", "out=done"}));
  await_both(launched);
  launched.send(SIGTSTP);
  int status = 0;
  ASSERT_EQ(::waitpid(launched.pid(), &status, WUNTRACED), launched.pid());
  EXPECT_TRUE(WIFSTOPPED(status));
  for (const pid_t pid : folder.pids(2)) {
    for (int i = 0; i < 1000 && state_of(pid) != 'T'; ++i) {
      ::usleep(5'000);
    }
    EXPECT_EQ(state_of(pid), 'T');
  }
  launched.send(SIGCONT);
  launched.send(SIGUSR1);
  launched.finish();
  EXPECT_EQ(launched.code(), 0);
  EXPECT_TRUE(holds(launched.out(), "[1] got signal 10\n[1] done")) << launched.out();
}

// nohup starts programs with SIGHUP ignored, and so it must stay.
TEST(RunSignals, AnIgnoredHangupStaysIgnored) {
  const auto before = ::signal(SIGHUP, SIG_IGN);
  Launched launched(actors({"-n", "2"}, {"out=ready", "sleep=0.5", "out=done"}));
  ::signal(SIGHUP, before);
  await_both(launched);
  launched.send(SIGHUP);
  launched.finish();
  EXPECT_EQ(launched.code(), 0);
  EXPECT_TRUE(holds(launched.out(), "[0] done") && holds(launched.out(), "[1] done")) << launched.out();
}

}  // namespace
}  // namespace lockstep::test
