// SPDX-License-Identifier: Apache-2.0
#include "comm/verdict.h"

#include "core/check.h"

namespace lockstep::comm {
namespace {

Words left_early(const Witness& mine, const Witness& theirs) {
  return {theirs.rank, core::str("[world] rank ", theirs.rank, " left after ", theirs.group.called,
                                 " collectives while rank ", mine.rank, " waits in ", mine.group.pending_text)};
}

// Every rank of the group may write this, so the lower rank is named first whoever writes it.
Words differ(const Witness& mine, const Witness& theirs) {
  const auto number = mine.group.pending;
  const auto& low = mine.rank < theirs.rank ? mine : theirs;
  const auto& high = mine.rank < theirs.rank ? theirs : mine;
  return {-1, core::str("[world] ranks called different collectives: rank ", low.rank, " is in ",
                        low.group.text_of(number), ", rank ", high.rank, " is in ", high.group.text_of(number))};
}

}  // namespace

std::optional<Words> compare(const Witness& mine, const Witness& theirs) {
  const auto number = mine.group.pending;
  if (number == 0) {
    return std::nullopt;
  }
  if (theirs.group.called < number) {
    return theirs.group.left ? std::optional(left_early(mine, theirs)) : std::nullopt;
  }
  const auto ours = mine.group.signature_of(number);
  const auto other = theirs.group.signature_of(number);
  if (ours && other && *ours != *other) {
    return differ(mine, theirs);
  }
  return std::nullopt;
}

Words timed_out(const Witness& mine, const std::vector<Witness>& others, std::chrono::milliseconds limit) {
  Words words{-1, core::str("[world] ", mine.group.pending_text, " took more than ",
                            std::chrono::duration<double>(limit).count(), " s on rank ", mine.rank)};
  for (const auto& other : others) {
    if (other.group.called < mine.group.pending) {
      words.origin = words.origin < 0 ? other.rank : words.origin;
      words.text += core::str("; rank ", other.rank, " has not called it");
      words.text += other.group.called == 0 ? std::string() : core::str(" (its last was ", other.group.last_text, ")");
    }
  }
  return words;
}

}  // namespace lockstep::comm
