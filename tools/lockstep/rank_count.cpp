// SPDX-License-Identifier: Apache-2.0
#include "lockstep/rank_count.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "core/check.h"

namespace lockstep::launcher {
namespace {

constexpr int most_ranks = 1024;

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

int processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// The driver makes one numbered device file a GPU. Asking CUDA would mean to load it.
int present_gpus() {
  constexpr std::string_view prefix = "nvidia";
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    count += name.starts_with(prefix) && is_number(std::string_view(name).substr(prefix.size())) ? 1 : 0;
  }
  return count;
}

bool names_a_gpu(std::string_view entry, int present) {
  if (!is_number(entry)) {
    return entry.starts_with("GPU-") || entry.starts_with("MIG-");
  }
  int index = present;
  std::from_chars(entry.data(), entry.data() + entry.size(), index);
  return index < present;
}

}  // namespace

int visible_gpus(int present, std::optional<std::string_view> visible_devices) {
  if (!visible_devices) {
    return present;
  }
  int count = 0;
  std::string_view rest = *visible_devices;
  while (!rest.empty()) {
    const auto comma = std::min(rest.find(','), rest.size());
    if (!names_a_gpu(rest.substr(0, comma), present)) {
      break;
    }
    ++count;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return present > 0 ? count : 0;
}

int count_ranks(const std::string& text, std::optional<std::string_view> visible_devices) {
  if (text == "cpu") {
    return processors();
  }
  if (text == "gpu" || text == "auto") {
    const int gpus = visible_gpus(present_gpus(), visible_devices);
    core::check(gpus > 0 || text == "auto", "lockstep.run", [&] {
      return core::Problem{.what = "-n gpu, but no NVIDIA GPU can be seen",
                           .got = "CUDA_VISIBLE_DEVICES=" + std::string(visible_devices.value_or("(unset)")),
                           .advice = "use -n with a number"};
    });
    return gpus > 0 ? gpus : processors();
  }
  core::check(is_number(text), "lockstep.run", [&] {
    return core::Problem{"-n is not a number of ranks", "'" + text + "'", "a whole number, auto, gpu or cpu"};
  });
  return parse_whole("-n", text, 1, most_ranks);
}

int parse_whole(std::string_view flag, const std::string& text, int lowest, int highest) {
  long value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  core::check(code == std::errc() && stop == end && value >= lowest && value <= highest, "lockstep.run", [&] {
    return core::Problem{.what = core::str(flag, " is out of range"),
                         .got = "'" + text + "'",
                         .expected = core::str("a whole number from ", lowest, " to ", highest)};
  });
  return static_cast<int>(value);
}

}  // namespace lockstep::launcher
