// SPDX-License-Identifier: Apache-2.0
#include "comm/error_board.h"

#include "core/check.h"

namespace lockstep::comm {
namespace {

constexpr const char* kKey = "error";

// The origin comes first, so that the text may hold anything.
std::string encode(const Words& words) {
  return core::str(words.origin, " ", words.text);
}

Words decode(const std::string& entry) {
  const auto space = entry.find(' ');
  return {std::stoi(entry.substr(0, space)), entry.substr(space + 1)};
}

}  // namespace

Words ErrorBoard::post(const Words& words) {
  return decode(store_->compareSet(kKey, std::string(), encode(words)));
}

std::optional<Words> ErrorBoard::read() {
  if (!store_->check({kKey})) {
    return std::nullopt;
  }
  return decode(store_->get_to_str(kKey));
}

}  // namespace lockstep::comm
