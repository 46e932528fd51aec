// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other about their collectives, and what is concluded from it.
#include "comm/verdict.h"

#include <gtest/gtest.h>

#include "comm/in_flight.h"
#include "comm/ledger.h"

namespace lockstep::comm {
namespace {

Call all_reduce_of(std::int64_t elements, std::uint32_t tag = 0) {
  return {Operation::AllReduce, at::kFloat, elements, ReduceOp::Sum, 0, {"bucket", tag}};
}

// A ledger as a rank's calls leave it, of which those from `pending_from` on are not done.
GroupPulse pulse_after(const std::vector<Call>& calls, std::size_t pending_from) {
  Ledger ledger("all", {0, 1});
  for (std::size_t i = 0; i < calls.size(); ++i) {
    auto call = calls[i];
    ledger.enter(call);
    auto progress = std::make_shared<Progress>(nullptr);
    ledger.track(call, progress);
    if (i < pending_from) {
      progress->end();
    }
  }
  ledger.pending_for();
  return ledger.pulse();
}

GroupPulse closed(GroupPulse pulse) {
  pulse.left = true;
  return pulse;
}

TEST(Call, signature_tells_apart_all_that_must_be_equal) {
  const Call base{Operation::AllReduce, at::kFloat, 8, ReduceOp::Sum, 0, {"x", 3}};
  auto same = base;
  same.label.name = "another name";
  same.number = 9;
  EXPECT_EQ(base.signature(), same.signature());
  std::vector<Call> others(6, base);
  others[0].operation = Operation::ReduceScatter;
  others[1].dtype = at::kInt;
  others[2].elements = 9;
  others[3].op = ReduceOp::Max;
  others[4].root = 1;
  others[5].label.tag = 4;
  for (const auto& other : others) {
    EXPECT_NE(base.signature(), other.signature()) << other.describe();
  }
}

TEST(Call, is_described_by_what_is_compared) {
  Call call{Operation::AllReduce, at::kHalf, 1000, ReduceOp::Average, 0, {"bucket 3", 20}};
  call.number = 21;
  EXPECT_EQ(call.describe(), "all_reduce #21 'bucket 3' (1000 Half, average, tag 20)");
  EXPECT_EQ((Call{Operation::Broadcast, at::kFloat, 2, ReduceOp::Sum, 1, {}, c10::kCPU, 4}.describe()),
            "broadcast #4 (2 Float, root 1)");
  EXPECT_EQ((Call{Operation::Barrier, at::kByte, 1, ReduceOp::Sum, 0, {}, c10::kCPU, 5}.describe()), "barrier #5");
}

TEST(Pulse, survives_its_encoding) {
  Pulse pulse{7, false, {pulse_after({all_reduce_of(1), all_reduce_of(2), all_reduce_of(3)}, 1), closed({"all.1.0"})}};
  pulse.groups[0].pending_text = "a name with\ta tab\nand a line";
  const auto copy = Pulse::decode(pulse.encode());
  EXPECT_EQ(copy.beat, 7);
  EXPECT_FALSE(copy.left);
  ASSERT_EQ(copy.groups.size(), 2);
  EXPECT_EQ(copy.groups[0].group, "all");
  EXPECT_EQ(copy.groups[0].called, 3);
  EXPECT_EQ(copy.groups[0].pending, 2);
  EXPECT_EQ(copy.groups[0].pending_text, "a name with a tab and a line");
  EXPECT_EQ(copy.groups[0].last_text, "all_reduce #3 'bucket' (3 Float, sum)");
  EXPECT_EQ(copy.groups[0].signatures, pulse.groups[0].signatures);
  EXPECT_TRUE(copy.find("all.1.0")->left);
  EXPECT_EQ(copy.find("none"), nullptr);
}

TEST(Pulse, decodes_anything_without_harm) {
  for (const char* text : {"", "x", "1 0\nall", "1 0\nall\t9 9 0 1 99999999 1 2\ta\tb", "-1\n\n\t\t\t"}) {
    EXPECT_NO_THROW(Pulse::decode(text)) << text;
  }
}

TEST(Ledger, window_holds_the_oldest_pending_call_however_many_follow) {
  std::vector<Call> calls;
  for (int i = 1; i <= 300; ++i) {
    calls.push_back(all_reduce_of(i));
  }
  const auto pulse = pulse_after(calls, 20);
  EXPECT_EQ(pulse.pending, 21);
  EXPECT_EQ(pulse.signature_of(21), calls[20].signature());
  EXPECT_EQ(pulse.signature_of(15), calls[14].signature());
  EXPECT_EQ(pulse.signature_of(300), std::nullopt);
  const auto idle = pulse_after(calls, 300);
  EXPECT_EQ(idle.pending, 0);
  EXPECT_EQ(idle.signature_of(300), calls[299].signature());
  EXPECT_EQ(idle.signature_of(301), std::nullopt);
}

TEST(Verdict, none_where_calls_agree_or_one_rank_is_behind) {
  const Witness mine{0, pulse_after({all_reduce_of(1), all_reduce_of(2)}, 1)};
  EXPECT_FALSE(compare(mine, {1, pulse_after({all_reduce_of(1), all_reduce_of(2)}, 1)}));
  EXPECT_FALSE(compare(mine, {1, pulse_after({all_reduce_of(1)}, 0)}));
  EXPECT_FALSE(compare(mine, {1, pulse_after({all_reduce_of(1), all_reduce_of(2), all_reduce_of(3)}, 2)}));
  EXPECT_FALSE(compare({0, pulse_after({all_reduce_of(1)}, 1)}, {1, closed(pulse_after({}, 0))}));
}

TEST(Verdict, differing_calls_are_shown_side_by_side_in_rank_order) {
  const Witness first{0, pulse_after({all_reduce_of(1, 5)}, 0)};
  const Witness second{1, pulse_after({all_reduce_of(1, 6)}, 0)};
  const auto words = compare(first, second);
  ASSERT_TRUE(words);
  EXPECT_EQ(words->text,
            "[world] ranks called different collectives: rank 0 is in all_reduce #1 'bucket' (1 Float, sum, tag 5), "
            "rank 1 is in all_reduce #1 'bucket' (1 Float, sum, tag 6)");
  EXPECT_EQ(compare(second, first)->text, words->text);
}

TEST(Verdict, a_call_that_the_other_has_done_already_is_compared_too) {
  const Witness mine{0, pulse_after({all_reduce_of(1), all_reduce_of(2)}, 1)};
  const auto words = compare(mine, {1, pulse_after({all_reduce_of(1), all_reduce_of(7), all_reduce_of(8)}, 3)});
  ASSERT_TRUE(words);
  EXPECT_NE(words->text.find("rank 1 is in another collective as #2"), std::string::npos) << words->text;
}

TEST(Verdict, a_rank_that_left_without_the_call_is_at_fault) {
  const Witness mine{2, pulse_after({all_reduce_of(1), all_reduce_of(2)}, 1)};
  const auto words = compare(mine, {1, closed(pulse_after({all_reduce_of(1)}, 1))});
  ASSERT_TRUE(words);
  EXPECT_EQ(words->origin, 1);
  EXPECT_EQ(words->text,
            "[world] rank 1 left after 1 collectives while rank 2 waits in all_reduce #2 'bucket' (2 Float, sum)");
}

TEST(Verdict, a_timeout_names_those_who_have_not_called) {
  const Witness mine{0, pulse_after({all_reduce_of(1), all_reduce_of(2)}, 1)};
  const auto words = timed_out(
      mine, {{1, pulse_after({all_reduce_of(1), all_reduce_of(2)}, 1)}, {2, pulse_after({all_reduce_of(1)}, 1)}},
      std::chrono::seconds(30));
  EXPECT_EQ(words.origin, 2);
  EXPECT_EQ(words.text,
            "[world] all_reduce #2 'bucket' (2 Float, sum) took more than 30 s on rank 0; rank 2 has not called it "
            "(its last was all_reduce #1 'bucket' (1 Float, sum))");
}

}  // namespace
}  // namespace lockstep::comm
