// SPDX-License-Identifier: Apache-2.0
// `lockstep doctor`: can this machine, with this build, train?
#include <CLI/CLI.hpp>
#include <iostream>

#include "lockstep/doctor/facts.h"
#include "lockstep/doctor/report.h"
#include "lockstep/doctor/self_test.h"

namespace {

using namespace lockstep::doctor;

constexpr int kUsageError = 2;
constexpr int kCpuRanks = 2;

/// Sections are printed as they are found: the test takes some seconds.
void add(std::vector<Section>& sections, Section section) {
  print(std::cout, section);
  sections.push_back(std::move(section));
}

std::vector<Section> examine(bool test) {
  std::vector<Section> sections;
  add(sections, {"Build", build_facts()});
  add(sections, {"Machine", machine_facts()});
  add(sections, {"CUDA", cuda_facts()});
  if (test) {
    add(sections, {"Test: ranks on the CPU, over Gloo", self_test(c10::kCPU, kCpuRanks)});
    if (const int devices = cuda_devices(); devices > 0) {
      add(sections, {devices == 1 ? "Test: one CUDA device" : "Test: a rank on each CUDA device, over NCCL",
                     self_test(c10::kCUDA, devices)});
    }
  }
  return sections;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Checks this machine's torch, devices and network for training.\n"
      "Exit code 0: ready; 1: something is bad; 2: a wrong option.",
      "lockstep doctor");
  bool facts_only = false;
  app.add_flag("--no-test", facts_only, "Report what is there, run nothing");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  const auto sections = examine(!facts_only);
  std::cout << "Verdict: " << verdict(sections) << std::endl;
  return exit_code(sections);
}
