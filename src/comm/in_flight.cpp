// SPDX-License-Identifier: Apache-2.0
#include "comm/in_flight.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/check.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

void raise_loss(Watch& watch, const Ledger& ledger, const Call& call, const std::string& reason) {
  watch.report_loss(ledger, call, reason);
  if (!watch.failure().wait([] { return false; }, 5s)) {
    watch.fail({-1, core::str("[world] rank ", watch.settings().rank, " lost a peer: ", reason)});
  }
  watch.failure().raise(core::str("rank ", watch.settings().rank, " was in ", call.describe()));
}

}  // namespace lockstep::comm

namespace lockstep {

using namespace std::chrono_literals;

Work::Impl::Impl(comm::Call call, comm::Issued issued, std::shared_ptr<comm::Watch> watch,
                 std::shared_ptr<comm::Ledger> ledger)
    : call_(std::move(call)),
      issued_(std::move(issued)),
      watch_(std::move(watch)),
      ledger_(std::move(ledger)),
      progress_(std::make_shared<comm::Progress>(issued_.probe)) {
  if (runs_on_host()) {
    follow();
  }
}

// The callback runs on the backend's own thread, where nothing may be thrown, and must not own the backend: that
// thread would then join itself.
void Work::Impl::follow() {
  issued_.work->getFuture()->addCallback(
      [watch = watch_, ledger = ledger_, progress = progress_, call = call_](c10::ivalue::Future& future) noexcept {
        if (future.hasError()) {
          watch->report_loss(*ledger, call, future.tryRetrieveErrorMessage());
        }
        watch->failure().update([&] { progress->end(); });
      });
}

void Work::Impl::await_end() {
  auto& failure = watch_->failure();
  comm::Silence silence;
  while (!progress_->ended() && !failure.wait([this] { return progress_->ended(); }, 100ms)) {
    watch_->check_silence(silence, 100ms);
  }
}

void Work::Impl::wait() {
  if (runs_on_host()) {
    await_end();
  }
  auto& failure = watch_->failure();
  if (failure.happened() && !progress_->ended()) {
    failure.raise(core::str("rank ", watch_->settings().rank, " was in ", call_.describe()));
  }
  try {
    issued_.work->wait();
  } catch (const std::exception& error) {
    comm::raise_loss(*watch_, *ledger_, call_, error.what());
  }
  finish();
}

bool Work::Impl::done() {
  if (!progress_->ended()) {
    return watch_->failure().happened();
  }
  if (issued_.work->isSuccess()) {
    finish();
  }
  return !finish_event_ || finish_event_->query();
}

void Work::Impl::finish() {
  if (!issued_.finish) {
    return;
  }
  std::lock_guard lock(finishing_);
  const c10::impl::VirtualGuardImpl guard(call_.device.type());
  if (!finished_) {
    at::NoGradGuard no_grad;
    issued_.finish();
    finished_ = true;
    if (!call_.device.is_cpu()) {
      finish_event_.emplace(call_.device.type());
      finish_event_->record(guard.getStream(call_.device));
    }
  } else if (finish_event_) {
    finish_event_->block(guard.getStream(call_.device));
  }
}

void Work::wait() {
  if (impl_) {
    impl_->wait();
  }
}

bool Work::done() const {
  return !impl_ || impl_->done();
}

}  // namespace lockstep
