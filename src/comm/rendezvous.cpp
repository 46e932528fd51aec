// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <thread>

#include "comm/backend.h"
#include "comm/failure.h"
#include "comm/network.h"
#include "core/check.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

namespace {

constexpr const char* kWhere = "world";

void require(bool ok, const char* what, const std::string& got, const std::string& expected) {
  core::check(ok, kWhere, [&] { return core::Problem{what, got, expected}; });
}

void check_numbers(const WorldOptions& o) {
  using core::str;
  require(o.size >= 1, "a world needs a rank", str("size ", o.size), "1 or more");
  require(o.rank >= 0 && o.rank < o.size, "no such rank", str("rank ", o.rank, " of ", o.size), "0 to size - 1");
  require(o.local_size >= 1 && o.local_size <= o.size, "local_size does not fit", str("local_size ", o.local_size),
          "1 to size");
  require(o.local_rank >= 0 && o.local_rank < o.local_size, "local_rank does not fit",
          str("local_rank ", o.local_rank, " of ", o.local_size), "0 to local_size - 1");
  require(o.timeout.count() > 0 && o.heartbeat_timeout.count() > 0 && o.mismatch_after.count() > 0,
          "a timeout is not positive",
          str(o.timeout.count(), ", ", o.heartbeat_timeout.count(), ", ", o.mismatch_after.count(), " ms"),
          "more than 0");
}

void check_meeting_point(const WorldOptions& o) {
  if (o.size == 1 || o.store) {
    return;
  }
  require(o.master_port > 0 && o.master_port <= 65535, "ranks cannot meet without a port",
          core::str("master_port ", o.master_port), "1 to 65535, the same on all ranks, or a store");
  require(!o.master_addr.empty(), "ranks cannot meet without an address", "an empty master_addr", "a host name");
}

c10::Device default_device(const WorldOptions& o) {
  const int devices = nccl_device_count();
  if (devices == 0 || o.backend == BackendKind::Self) {
    return c10::kCPU;
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(o.local_rank % devices)};
}

// A rank without a device of its own shares one.
c10::Device chosen_device(const WorldOptions& o) {
  const int devices = nccl_device_count();
  require(devices > 0, "there is no CUDA device", o.device->str(), "cpu, or a CUDA build on a machine with a GPU");
  const int index = o.device->has_index() ? o.device->index() : o.local_rank % devices;
  require(index < devices, "no such CUDA device", core::str("cuda:", index), core::str("0 to ", devices - 1));
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

// NCCL wants a device for each rank, so ranks that have to share one meet over Gloo.
BackendKind default_backend(const WorldOptions& o) {
  const bool own_device = o.device->is_cuda() && o.local_size <= nccl_device_count();
  return own_device ? BackendKind::Nccl : BackendKind::Gloo;
}

c10::intrusive_ptr<c10d::Store> with_prefix(c10::intrusive_ptr<c10d::Store> store, const std::string& prefix) {
  if (prefix.empty()) {
    return store;
  }
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

std::optional<int> loopback_listener(const WorldOptions& options) {
  if (!is_loopback(options.master_addr) || options.master_addr == "::1") {
    return std::nullopt;
  }
  return listen_on_loopback(static_cast<std::uint16_t>(options.master_port));
}

c10::intrusive_ptr<c10d::Store> open_store(const WorldOptions& options) {
  if (options.store) {
    return with_prefix(c10::intrusive_ptr<c10d::Store>::reclaim_copy(options.store.get()), options.store_prefix);
  }
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<std::uint16_t>(options.master_port);
  tcp.isServer = store_host(options) == options.rank;
  tcp.waitWorkers = false;
  tcp.timeout = options.timeout;
  tcp.masterListenFd = tcp.isServer ? loopback_listener(options) : std::nullopt;
  return with_prefix(c10::make_intrusive<c10d::TCPStore>(options.master_addr, tcp), options.store_prefix);
}

std::int64_t count_worlds(c10d::Store& store, int rank) {
  return store.add(core::str("lockstep/worlds_of/", rank), 1);
}

c10::intrusive_ptr<c10d::Store> space_of(c10::intrusive_ptr<c10d::Store> store, std::int64_t number) {
  return c10::make_intrusive<c10d::PrefixStore>(core::str("lockstep/", number), std::move(store));
}

// A store that outlives worlds sees several, one after another: a rank's n-th meets the other ranks' n-th.
c10::intrusive_ptr<c10d::Store> count_in(const WorldOptions& options) {
  auto store = open_store(options);
  const auto number = count_worlds(*store, options.rank);
  return space_of(std::move(store), number);
}

// A space in the store, or why there is none yet.
struct Attempt {
  c10::intrusive_ptr<c10d::Store> space = {};
  std::string reason = {};
};

// A store that rank 0 serves sees one world. A rank that is quicker than rank 0 from one world to the next may still
// find the old store, or lose it while it is asking; then it comes again.
Attempt join_served(const WorldOptions& options) {
  try {
    auto store = open_store(options);
    if (count_worlds(*store, options.rank) == 1) {
      return {space_of(std::move(store), 1)};
    }
    return {nullptr, "it belongs to another world"};
  } catch (const c10::DistNetworkError& error) {
    return {nullptr, first_line(error.what_without_backtrace())};
  }
}

}  // namespace

WorldOptions completed(WorldOptions options) {
  options.local_rank = options.local_rank < 0 ? options.rank : options.local_rank;
  options.local_size = options.local_size < 0 ? options.size : options.local_size;
  check_numbers(options);
  check_meeting_point(options);
  if (!options.device) {
    options.device = default_device(options);
  }
  if (options.device->is_cuda()) {
    options.device = chosen_device(options);
  }
  require(options.backend != BackendKind::Self || options.size == 1, "a world of several ranks moves bytes",
          "backend Self", "Auto, Gloo or Nccl");
  require(options.backend != BackendKind::Nccl || options.device->is_cuda(), "NCCL needs a CUDA device",
          options.device->str(), "cuda");
  if (options.size == 1) {
    options.backend = BackendKind::Self;
  } else if (options.backend == BackendKind::Auto) {
    options.backend = default_backend(options);
  }
  return options;
}

int store_host(const WorldOptions& options) {
  return options.size > 1 && !options.store && !options.store_is_external ? 0 : -1;
}

c10::intrusive_ptr<c10d::Store> meet(const WorldOptions& options) {
  const int host = store_host(options);
  if (host < 0 || host == options.rank) {
    return count_in(options);
  }
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  while (true) {
    auto attempt = join_served(options);
    if (attempt.space) {
      return attempt.space;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      throw WorldError(host,
                       core::str("[world] rank ", options.rank, " cannot use the store that rank ", host, " serves at ",
                                 options.master_addr, ":", options.master_port, ": ", attempt.reason));
    }
    std::this_thread::sleep_for(20ms);
  }
}

}  // namespace lockstep::comm
