// SPDX-License-Identifier: Apache-2.0
#include "replica/ballot.h"

#include <gtest/gtest.h>

namespace lockstep::replica {
namespace {

TEST(Ballot, agreement_is_no_dispute) {
  EXPECT_TRUE(disputes({{1, 2}, {1, 2}, {1, 2}}).empty());
  EXPECT_TRUE(disputes({{1, 2}}).empty());
  EXPECT_TRUE(disputes({{}, {}}).empty());
}

TEST(Ballot, of_three_the_odd_one_out_is_named) {
  for (int odd = 0; odd < 3; ++odd) {
    Table table(3, {7, 7});
    table[static_cast<std::size_t>(odd)][1] = 9;
    const auto found = disputes(table);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].entry, 1U);
    EXPECT_TRUE(found[0].majority);
    EXPECT_EQ(found[0].minority, std::vector<int>{odd});
    EXPECT_EQ(found[0].reference, odd == 0 ? 1 : 0);
    EXPECT_EQ(healthiest(found, 3), odd == 0 ? 1 : 0);
  }
}

TEST(Ballot, of_two_nobody_can_tell) {
  const auto ballot = vote({{1}, {2}}, 0);
  EXPECT_FALSE(ballot.majority);
  EXPECT_EQ(ballot.reference, 0);
  EXPECT_EQ(ballot.minority, std::vector<int>{1});
}

TEST(Ballot, two_against_two_has_no_majority_and_two_against_one_and_one_has) {
  EXPECT_FALSE(vote({{1}, {2}, {2}, {1}}, 0).majority);
  const auto ballot = vote({{5}, {2}, {2}, {1}}, 0);
  EXPECT_TRUE(ballot.majority);
  EXPECT_EQ(ballot.reference, 1);
  EXPECT_EQ(ballot.minority, (std::vector<int>{0, 3}));
}

TEST(Ballot, a_larger_group_wins_wherever_it_stands) {
  const auto ballot = vote({{1}, {1}, {2}, {2}, {2}}, 0);
  EXPECT_TRUE(ballot.majority);
  EXPECT_EQ(ballot.reference, 2);
}

// No two ranks are equal as a whole, and yet it is plain who is healthy.
TEST(Ballot, the_healthiest_rank_is_in_the_fewest_minorities) {
  const Table table = {{1, 1, 1, 9}, {9, 1, 1, 1}, {1, 9, 1, 1}, {1, 1, 1, 1}};
  EXPECT_EQ(healthiest(disputes(table), 4), 3);
}

}  // namespace
}  // namespace lockstep::replica
