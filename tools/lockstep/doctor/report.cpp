// SPDX-License-Identifier: Apache-2.0
#include "lockstep/doctor/report.h"

#include <ostream>

namespace lockstep::doctor {
namespace {

const char* mark(Grade grade) {
  switch (grade) {
    case Grade::ok:
      return "  ok    ";
    case Grade::note:
      return "  note  ";
    default:
      return "  BAD   ";
  }
}

std::vector<std::string> faults(const std::vector<Section>& sections) {
  std::vector<std::string> texts;
  for (const auto& section : sections) {
    for (const auto& finding : section.findings) {
      if (finding.grade == Grade::bad) {
        texts.push_back(finding.text);
      }
    }
  }
  return texts;
}

}  // namespace

void print(std::ostream& out, const Section& section) {
  out << section.title << "\n";
  for (const auto& finding : section.findings) {
    out << mark(finding.grade) << finding.text << "\n";
  }
  out << std::flush;
}

std::string verdict(const std::vector<Section>& sections) {
  const auto found = faults(sections);
  std::string text = found.empty() ? "ready" : "not ready: ";
  for (std::size_t i = 0; i < found.size(); ++i) {
    text += (i == 0 ? "" : "; ") + found[i];
  }
  return text;
}

int exit_code(const std::vector<Section>& sections) {
  return faults(sections).empty() ? 0 : 1;
}

}  // namespace lockstep::doctor
