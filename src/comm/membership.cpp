// SPDX-License-Identifier: Apache-2.0
#include "comm/membership.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/arrival.h"
#include "comm/c10d_defaults.h"
#include "comm/interruptible_store.h"
#include "comm/leave.h"
#include "comm/rendezvous.h"
#include "comm/signal_mask.h"
#include "core/check.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

namespace {

WatchSettings settings_of(const WorldOptions& options) {
  return {options.rank,           options.size,        options.timeout,           options.heartbeat_timeout,
          options.mismatch_after, store_host(options), options.launcher_events_fd};
}

}  // namespace

Membership::Membership(const WorldOptions& options)
    : options_(options), watch_(std::make_shared<Watch>(settings_of(options))) {
  set_c10d_defaults();
  const SigpipeBlock block;
  store_ = meet(options);
  watcher_ = std::make_unique<Watcher>(watch_, store_->clone());
  try {
    watch_->set_peers(arrive(store_, options, *watch_));
  } catch (const InputError& error) {
    throw InputError(watch_->fail({options.rank, error.what()}).text);
  } catch (const c10::Error& error) {
    // The store broke; the watcher has seen it too and may know why.
    watch_->fail({-1, core::str("[world] the store is gone: ", first_line(error.what_without_backtrace()))});
    watch_->failure().raise();
  }
}

// The store goes last: where this rank serves it, the watcher's goodbye still needs it.
Membership::~Membership() {
  const auto limit = store_host(options_) == options_.rank ? 3s : 1s;
  auto watcher = std::make_shared<std::unique_ptr<Watcher>>(std::move(watcher_));
  auto store = std::make_shared<c10::intrusive_ptr<c10d::Store>>(std::move(store_));
  run_or_leave(
      [watcher, store] {
        watcher->reset();
        store->reset();
      },
      limit);
}

std::unique_ptr<Backend> Membership::make_group(const std::string& name, int rank, int size) {
  if (size == 1) {
    return make_self_backend();
  }
  const SigpipeBlock block;
  GroupPlan plan;
  plan.store = c10::make_intrusive<c10d::PrefixStore>(core::str("group/", name),
                                                      c10::make_intrusive<InterruptibleStore>(store_, watch_));
  plan.rank = rank;
  plan.size = size;
  plan.device = *options_.device;
  plan.interface = options_.interface;
  plan.master_addr = options_.master_addr;
  plan.timeout = options_.timeout;
  try {
    return options_.backend == BackendKind::Nccl ? make_nccl_backend(plan) : make_gloo_backend(plan);
  } catch (const WorldError&) {
    throw;
  } catch (const std::exception& error) {
    const auto reason = first_line(error.what());
    watch_->fail({options_.rank, core::str("[world] rank ", options_.rank, " cannot join group ", name, ": ", reason)});
    watch_->failure().raise();
  }
}

}  // namespace lockstep::comm
