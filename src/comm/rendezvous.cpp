// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/backend.h"
#include "comm/network.h"
#include "comm/signal_mask.h"
#include "core/check.h"

namespace lockstep::comm {
namespace {

constexpr const char* kWhere = "world";

void require(bool ok, const char* what, const std::string& got, const char* expected) {
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

}  // namespace

WorldOptions completed(WorldOptions options) {
  options.local_rank = options.local_rank < 0 ? options.rank : options.local_rank;
  options.local_size = options.local_size < 0 ? options.size : options.local_size;
  check_numbers(options);
  check_meeting_point(options);
  if (!options.device) {
    options.device = default_device(options);
  }
  if (options.device->is_cuda() && !options.device->has_index()) {
    options.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.local_rank));
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

c10::intrusive_ptr<c10d::Store> open_store(const WorldOptions& options) {
  if (options.store) {
    return with_prefix(c10::intrusive_ptr<c10d::Store>::reclaim_copy(options.store.get()), options.store_prefix);
  }
  const SigpipeBlock block;
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<std::uint16_t>(options.master_port);
  tcp.isServer = store_host(options) == options.rank;
  tcp.waitWorkers = false;
  tcp.timeout = options.timeout;
  tcp.masterListenFd = tcp.isServer ? loopback_listener(options) : std::nullopt;
  return with_prefix(c10::make_intrusive<c10d::TCPStore>(options.master_addr, tcp), options.store_prefix);
}

}  // namespace lockstep::comm
