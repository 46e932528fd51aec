// SPDX-License-Identifier: Apache-2.0
// Parts of a world.
#include <algorithm>
#include <sstream>

#include "comm/world_impl.h"
#include "core/check.h"

namespace lockstep {
namespace {

struct Choice {
  int rank = 0;
  int color = 0;
  int key = 0;
};

std::vector<Choice> decode(const std::vector<std::string>& texts) {
  std::vector<Choice> choices;
  for (const auto& text : texts) {
    Choice choice{static_cast<int>(choices.size())};
    std::istringstream(text) >> choice.color >> choice.key;
    choices.push_back(choice);
  }
  return choices;
}

std::vector<int> members_of(std::vector<Choice> choices, int color) {
  std::erase_if(choices, [&](const Choice& choice) { return choice.color != color; });
  std::stable_sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  std::vector<int> members;
  for (const auto& choice : choices) {
    members.push_back(choice.rank);
  }
  return members;
}

}  // namespace

World World::split(int color, int key) const {
  const auto choices = decode(all_gather_text(core::str(color, " ", key), {"split"}));
  const int number = impl_->next_split();
  if (color < 0) {
    const auto alone = core::str(impl_->ledger().group(), ".", number, ".alone.", rank());
    return World(std::make_shared<Impl>(*impl_, alone, std::vector<int>{rank()}));
  }
  const auto name = core::str(impl_->ledger().group(), ".", number, ".", color);
  return World(std::make_shared<Impl>(*impl_, name, members_of(choices, color)));
}

}  // namespace lockstep
