// SPDX-License-Identifier: Apache-2.0
#include "comm/arrival.h"

#include <algorithm>
#include <sstream>

#include "core/check.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

namespace {

std::string arrival_key(int rank) {
  return core::str("arrived/", rank);
}

// What has to be the same on all ranks comes first, the process after a bar.
std::string terms(const WorldOptions& options) {
  return core::str("size ", options.size, ", backend ", static_cast<int>(options.backend), ", device type ",
                   c10::DeviceTypeName(options.device->type(), true));
}

std::vector<std::string> keys_of(int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) {
    keys.push_back(arrival_key(rank));
  }
  return keys;
}

[[noreturn]] void missing(c10d::Store& store, const WorldOptions& options, Watch& watch) {
  std::string ranks;
  int first = -1;
  for (int rank = 0; rank < options.size; ++rank) {
    if (!store.check({arrival_key(rank)})) {
      first = first < 0 ? rank : first;
      ranks += core::str(ranks.empty() ? "" : ", ", rank);
    }
  }
  watch.fail({first, core::str("[world] not all ranks have come within ",
                               std::chrono::duration<double>(options.timeout).count(), " s; missing: ", ranks)});
  watch.failure().raise();
}

void wait_for_all(c10d::Store& store, const WorldOptions& options, Watch& watch) {
  const auto keys = keys_of(options.size);
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  auto pause = 1ms;
  while (!store.check(keys)) {
    if (std::chrono::steady_clock::now() > deadline) {
      missing(store, options, watch);
    }
    watch.failure().wait([] { return false; }, pause);
    watch.failure().check();
    pause = std::min(pause * 2, 20ms);
  }
}

}  // namespace

std::vector<PeerProcess> arrive(const c10::intrusive_ptr<c10d::Store>& store, const WorldOptions& options,
                                Watch& watch) {
  store->set(arrival_key(options.rank), terms(options) + "|" + PeerProcess::self().encode());
  wait_for_all(*store, options, watch);
  std::vector<PeerProcess> processes;
  for (int rank = 0; rank < options.size; ++rank) {
    const auto entry = store->get_to_str(arrival_key(rank));
    const auto bar = entry.find('|');
    core::check(entry.substr(0, bar) == terms(options), "world", [&] {
      return core::Problem{core::str("ranks were told different things: rank ", rank, " has ", entry.substr(0, bar),
                                     ", rank ", options.rank, " has ", terms(options))};
    });
    processes.push_back(PeerProcess::decode(entry.substr(bar + 1)));
  }
  return processes;
}

}  // namespace lockstep::comm
