// SPDX-License-Identifier: Apache-2.0
#include "comm/pulse.h"

#include <algorithm>
#include <sstream>

#include "core/check.h"

namespace lockstep::comm {
namespace {

// Names are user text: a tab or a new line in one would split the record.
std::string one_field(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return text;
}

void encode(std::ostream& out, const GroupPulse& group) {
  out << '\n'
      << group.group << '\t' << group.called << ' ' << group.pending << ' ' << group.left << ' ' << group.first << ' '
      << group.signatures.size();
  for (const auto signature : group.signatures) {
    out << ' ' << signature;
  }
  out << '\t' << one_field(group.pending_text) << '\t' << one_field(group.last_text);
}

GroupPulse decode_group(const std::string& line) {
  GroupPulse group;
  std::istringstream fields(line);
  std::string numbers;
  std::getline(fields, group.group, '\t');
  std::getline(fields, numbers, '\t');
  std::getline(fields, group.pending_text, '\t');
  std::getline(fields, group.last_text, '\t');
  std::istringstream in(numbers);
  std::size_t count = 0;
  in >> group.called >> group.pending >> group.left >> group.first >> count;
  group.signatures.resize(std::min(count, GroupPulse::kWindow));
  for (auto& signature : group.signatures) {
    in >> signature;
  }
  return group;
}

}  // namespace

std::optional<std::uint32_t> GroupPulse::signature_of(std::uint64_t number) const {
  if (number < first || number - first >= signatures.size()) {
    return std::nullopt;
  }
  return signatures[static_cast<std::size_t>(number - first)];
}

std::string GroupPulse::text_of(std::uint64_t number) const {
  if (number == pending) {
    return pending_text;
  }
  return number == called ? last_text : core::str("another collective as #", number);
}

const GroupPulse* Pulse::find(const std::string& group) const {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.group == group; });
  return found == groups.end() ? nullptr : &*found;
}

std::string Pulse::encode() const {
  std::ostringstream out;
  out << beat << ' ' << left;
  for (const auto& group : groups) {
    comm::encode(out, group);
  }
  return out.str();
}

Pulse Pulse::decode(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  Pulse pulse;
  std::getline(lines, line);
  std::istringstream(line) >> pulse.beat >> pulse.left;
  while (std::getline(lines, line)) {
    pulse.groups.push_back(decode_group(line));
  }
  return pulse;
}

}  // namespace lockstep::comm
