// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/world.h"

#include <exception>
#include <numeric>

#include "comm/leave.h"
#include "comm/rendezvous.h"
#include "comm/world_impl.h"
#include "core/check.h"

namespace lockstep {

using namespace std::chrono_literals;

namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

WorldOptions part_of(WorldOptions options, int rank, int size) {
  options.rank = rank;
  options.size = size;
  return options;
}

int place_in(const std::vector<int>& members, int rank) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

}  // namespace

World::Impl::Impl(const WorldOptions& options) : options_(options), exceptions_at_birth_(std::uncaught_exceptions()) {
  if (options.size == 1) {
    watch_ = std::make_shared<comm::Watch>(comm::WatchSettings{});
    backend_ = comm::make_self_backend();
  } else {
    membership_ = std::make_shared<comm::Membership>(options);
    watch_ = membership_->watch();
    backend_ = membership_->make_group("all", options.rank, options.size);
  }
  watch_over("all", all_ranks(options.size));
}

World::Impl::Impl(const Impl& parent, const std::string& name, const std::vector<int>& members)
    : options_(part_of(parent.options_, place_in(members, parent.options_.rank), static_cast<int>(members.size()))),
      exceptions_at_birth_(std::uncaught_exceptions()),
      membership_(parent.membership_),
      watch_(parent.watch_),
      backend_(membership_ ? membership_->make_group(name, options_.rank, options_.size) : comm::make_self_backend()) {
  std::vector<int> in_whole_world;
  for (const int member : members) {
    in_whole_world.push_back(parent.ledger_->members()[static_cast<std::size_t>(member)]);
  }
  watch_over(name, std::move(in_whole_world));
}

void World::Impl::watch_over(const std::string& name, std::vector<int> members) {
  ledger_ = std::make_shared<comm::Ledger>(name, std::move(members));
  watch_->add(ledger_, backend_);
}

World::Impl::~Impl() {
  const bool in_peace = std::uncaught_exceptions() <= exceptions_at_birth_;
  if (in_peace) {
    end_pending();
  } else {
    leave_in_flight();
  }
  ledger_->close(in_peace);
  watch_->nudge();
  auto backend = std::make_shared<std::shared_ptr<comm::Backend>>(std::move(backend_));
  const auto limit = (*backend)->kind() == BackendKind::Nccl ? 10s : 1s;
  comm::run_or_leave([backend] { backend->reset(); }, limit);
}

// An exception passes through here, whose words cannot be known yet. Whoever catches it may still tell the others
// through another handle of the world; if this was the last one, nobody will.
void World::Impl::leave_in_flight() {
  const int rank = watch_->settings().rank;
  const auto text = core::str("[world] rank ", rank, " left while an exception was under way");
  if (membership_.use_count() == 1 && !watch_->failure().happened()) {
    watch_->fail({rank, text});
  }
  backend_->wake(text);
}

// Collectives whose Work nobody has waited for get a moment, on CUDA all the time that others would wait for them: the
// host may be far ahead of the device. What is not done then will never be, and those who share it are told.
void World::Impl::end_pending() {
  auto& failure = watch_->failure();
  const auto limit = backend_->kind() == BackendKind::Nccl ? options_.timeout : std::chrono::milliseconds(1s);
  const auto deadline = comm::Watch::Clock::now() + limit;
  while (ledger_->pending_for().count() > 0 && !failure.happened()) {
    if (comm::Watch::Clock::now() > deadline) {
      const int rank = watch_->settings().rank;
      watch_->fail(
          {rank, core::str("[world] rank ", rank, " left while ", ledger_->pulse().pending_text, " was not done")});
    }
    failure.wait([] { return false; }, 2ms);
  }
}

comm::Place World::Impl::place() const {
  const bool takes_cpu = backend_->accepts(c10::kCPU);
  return {options_.rank, options_.size, *options_.device, takes_cpu};
}

Work World::Impl::issue(comm::Call call, Begin begin) {
  watch_->failure().check();
  std::lock_guard lock(issuing_);
  ledger_->enter(call);
  if (call.elements == 0) {
    return Work();
  }
  auto issued = try_begin(call, begin);
  if (!issued.work) {
    return Work();
  }
  auto work = std::make_shared<Work::Impl>(call, std::move(issued), watch_, ledger_);
  ledger_->track(call, work->progress());
  return Work(std::move(work));
}

Work World::Impl::pass(comm::Call call) {
  watch_->failure().check();
  ledger_->enter(call);
  return Work();
}

comm::Issued World::Impl::try_begin(const comm::Call& call, Begin begin) {
  try {
    return begin(call);
  } catch (const std::exception& error) {
    comm::raise_loss(*watch_, *ledger_, call, error.what());
  }
}

World::World() : World(WorldOptions{.device = c10::Device(c10::kCPU)}) {}

World::World(const WorldOptions& options) : impl_(std::make_shared<Impl>(comm::completed(options))) {}

World::World(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

int World::rank() const {
  return impl_->options().rank;
}

int World::size() const {
  return impl_->options().size;
}

int World::local_rank() const {
  return impl_->options().local_rank;
}

int World::local_size() const {
  return impl_->options().local_size;
}

c10::Device World::device() const {
  return *impl_->options().device;
}

BackendKind World::backend() const {
  return impl_->backend().kind();
}

std::chrono::milliseconds World::timeout() const {
  return impl_->options().timeout;
}

std::string World::fail(const std::string& text) const {
  auto& watch = impl_->watch();
  return watch.fail({watch.settings().rank, text}).text;
}

void World::check() const {
  impl_->watch().failure().check();
}

std::uint64_t World::collectives_issued() const {
  return impl_->ledger().called();
}

}  // namespace lockstep
