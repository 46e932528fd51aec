// SPDX-License-Identifier: Apache-2.0
#include "support/profile.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

namespace lockstep::bench {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

struct Kernel {
  std::string name;
  double calls = 0;
  double microseconds = 0;
};

std::vector<Kernel> kernels_of(const profiler::ProfilerResult& result, int steps) {
  std::map<std::string, Kernel> by_name;
  for (const auto& event : result.events()) {
    if (event.deviceType() == c10::DeviceType::CUDA) {
      auto& kernel = by_name[event.name()];
      kernel.name = event.name();
      kernel.calls += 1.0 / steps;
      kernel.microseconds += 1e-3 * static_cast<double>(event.durationNs()) / steps;
    }
  }
  std::vector<Kernel> kernels;
  for (const auto& [name, kernel] : by_name) {
    kernels.push_back(kernel);
  }
  std::sort(kernels.begin(), kernels.end(),
            [](const Kernel& a, const Kernel& b) { return a.microseconds > b.microseconds; });
  return kernels;
}

std::string table_of(const std::vector<Kernel>& kernels) {
  constexpr int kNameWidth = 110;
  double total = 0;
  for (const auto& kernel : kernels) {
    total += kernel.microseconds;
  }
  std::string table;
  char line[256];
  for (const auto& kernel : kernels) {
    std::snprintf(line, sizeof line, "%9.1f us %5.1f %% %6.1f calls  %.*s\n", kernel.microseconds,
                  100 * kernel.microseconds / total, kernel.calls, kNameWidth, kernel.name.c_str());
    table += line;
  }
  std::snprintf(line, sizeof line, "%9.1f us a step in %zu kinds of kernels\n", total, kernels.size());
  return table + line;
}

}  // namespace

std::string kernel_table(int steps, const std::function<void()>& step) {
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  for (int i = 0; i < steps; ++i) {
    step();
  }
  at::accelerator::synchronizeDevice(0);
  return table_of(kernels_of(*profiler::disableProfiler(), steps));
}

}  // namespace lockstep::bench
