// SPDX-License-Identifier: Apache-2.0
// What `lockstep doctor` found, and what follows from it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace lockstep::doctor {

enum class Grade : std::uint8_t {
  ok,
  note,  // worth knowing; training works all the same
  bad,   // training fails, or computes the wrong thing
};

struct Finding {
  Grade grade = Grade::ok;
  std::string text;
};

using Findings = std::vector<Finding>;

struct Section {
  std::string title;
  Findings findings;
};

void print(std::ostream& out, const Section& section);

/// "ready", or "not ready: " and the bad findings' texts.
std::string verdict(const std::vector<Section>& sections);

/// 0 where nothing is bad, else 1.
int exit_code(const std::vector<Section>& sections);

}  // namespace lockstep::doctor
