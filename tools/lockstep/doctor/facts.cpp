// SPDX-License-Identifier: Apache-2.0
#include "lockstep/doctor/facts.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/version.h>

#include <thread>

#include "core/check.h"
#include "lockstep/version.h"

namespace lockstep::doctor {
namespace {

using core::str;

/// The version that the loaded libtorch_cpu says it is, or nothing.
std::string loaded_torch() {
  const auto text = at::show_config();
  const std::string key = "TORCH_VERSION=";
  const auto begin = text.find(key);
  return begin == std::string::npos ? "" : text.substr(begin + key.size(), text.find(',', begin) - begin - key.size());
}

/// "eth0 10.0.0.5, lo 127.0.0.1": IPv4 interfaces that are up.
std::string interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return "";
  }
  std::string text;
  for (auto* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET && (entry->ifa_flags & IFF_UP) != 0) {
      char address[INET_ADDRSTRLEN] = {};
      const auto* in = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      ::inet_ntop(AF_INET, &in->sin_addr, address, sizeof address);
      text += str(text.empty() ? "" : ", ", entry->ifa_name, " ", address);
    }
  }
  ::freeifaddrs(list);
  return text;
}

Finding interface_fact() {
  const auto found = interfaces();
  if (found.find("127.0.0.1") == std::string::npos) {
    return {Grade::bad, "no loopback interface is up, and ranks of one machine meet on 127.0.0.1"};
  }
  return {Grade::ok, "network: " + found + "; Gloo takes the one by which it reaches the master's address"};
}

Finding shared_memory_fact() {
  constexpr double kEnough = 1 << 30;
  struct statvfs space {};
  if (::statvfs("/dev/shm", &space) != 0) {
    return {Grade::note, "/dev/shm is not there; NCCL needs it between GPUs without a direct link"};
  }
  const auto bytes = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  const auto text = str("/dev/shm has ", static_cast<std::int64_t>(bytes / 0x1p20), " MiB free");
  return bytes >= kEnough ? Finding{Grade::ok, text}
                          : Finding{Grade::note, text + "; NCCL may need more (containers: --shm-size)"};
}

Finding open_files_fact() {
  constexpr rlim_t kEnough = 1024;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const bool enough = limit.rlim_cur >= kEnough;
  return {enough ? Grade::ok : Grade::note,
          str("open files: at most ", limit.rlim_cur, enough ? "" : "; many ranks need more (ulimit -n)")};
}

}  // namespace

Findings build_facts() {
  Findings found{{Grade::ok, "lockstep " LOCKSTEP_VERSION ", built with torch " TORCH_VERSION}};
  const auto loaded = loaded_torch();
  if (!loaded.starts_with(TORCH_VERSION)) {
    found.push_back({loaded.empty() ? Grade::note : Grade::bad,
                     str("the torch that was loaded is ", loaded.empty() ? "unknown" : loaded,
                         ", not the one that this build was made for")});
  }
  return found;
}

Findings machine_facts() {
  return {{Grade::ok, str(std::thread::hardware_concurrency(), " processors, ", at::get_num_threads(),
                          " threads for torch (OMP_NUM_THREADS)")},
          interface_fact(),
          shared_memory_fact(),
          open_files_fact()};
}

}  // namespace lockstep::doctor
