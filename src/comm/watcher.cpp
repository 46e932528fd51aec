// SPDX-License-Identifier: Apache-2.0
#include "comm/watcher.h"

#include "comm/error_board.h"
#include "comm/launcher_pipe.h"
#include "comm/ledger.h"
#include "comm/peers.h"
#include "comm/suspicion.h"
#include "comm/verdict.h"
#include "core/check.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

namespace {

constexpr auto kTick = 20ms;
constexpr auto kBeat = 200ms;
constexpr auto kFarewell = 2s;
constexpr const char* kHostLeaves = "host_leaves";

std::string seen_key(int rank) {
  return core::str("seen/", rank);
}

class WatchLoop {
 public:
  WatchLoop(Watch& watch, const c10::intrusive_ptr<c10d::Store>& store)
      : watch_(watch),
        store_(store),
        board_(store),
        peers_(store, watch.settings().rank, watch.settings().size),
        pipe_(watch.settings().launcher_events_fd),
        suspicion_(watch, peers_) {}

  void run() noexcept;

 private:
  bool over() const { return watch_.failure().happened(); }
  void tick();
  void listen();
  std::optional<Words> news();
  void settle(const Words& words) { watch_.settle(board_.post(words)); }
  void publish(bool leaving);
  void beat();
  void inspect(Ledger& ledger);
  std::vector<Witness> witnesses(const Ledger& ledger);
  bool host_leaves();
  void farewell();
  void linger();
  void store_lost(const std::string& reason);

  Watch& watch_;
  const c10::intrusive_ptr<c10d::Store> store_;
  ErrorBoard board_;
  Peers peers_;
  LauncherPipe pipe_;
  Suspicion suspicion_;
  std::uint64_t beats_ = 0;
  Watch::Clock::time_point next_beat_ = Watch::Clock::now();
  bool host_left_ = false;
  std::optional<Words> told_;
};

void WatchLoop::run() noexcept {
  try {
    publish(false);
    while (!watch_.stopping() && !over() && !host_left_) {
      tick();
      if (!over()) {
        watch_.sleep(kTick, pipe_.fd());
      }
    }
    farewell();
  } catch (const std::exception& error) {
    store_lost(error.what());
  }
  watch_.end();
}

void WatchLoop::tick() {
  if (const auto words = news()) {
    return settle(*words);
  }
  if (const auto words = board_.read()) {
    return watch_.settle(*words);
  }
  watch_.answered();
  host_left_ = host_leaves();
  if (watch_.take_nudge() || Watch::Clock::now() >= next_beat_) {
    beat();
  }
}

// The launcher's first words are kept: the store may die with the rank they are about, before they could be posted.
void WatchLoop::listen() {
  if (auto told = pipe_.read(); !told.empty() && !told_) {
    told_ = told.front();
  }
}

// What this rank was told and the others may not know yet. A launcher knows best, so it comes first.
std::optional<Words> WatchLoop::news() {
  if (listen(); told_) {
    return told_;
  }
  if (auto proposal = watch_.proposal()) {
    return proposal;
  }
  return watch_.peers().empty() ? std::nullopt : suspicion_.judge(pipe_.fd() >= 0);
}

void WatchLoop::publish(bool leaving) {
  peers_.publish({++beats_, leaving, watch_.pulses()});
  next_beat_ = Watch::Clock::now() + kBeat;
}

void WatchLoop::beat() {
  publish(false);
  if (watch_.peers().empty()) {
    return;
  }
  suspicion_.look_at_neighbour();
  for (const auto& ledger : watch_.ledgers()) {
    if (!over()) {
      inspect(*ledger);
    }
  }
}

void WatchLoop::inspect(Ledger& ledger) {
  const auto& settings = watch_.settings();
  const auto pending_for = ledger.pending_for();
  const Witness mine{settings.rank, ledger.pulse()};
  if (mine.group.pending == 0 || pending_for < std::min(settings.mismatch_after, settings.timeout)) {
    return;
  }
  const auto others = witnesses(ledger);
  for (const auto& other : others) {
    if (const auto words = compare(mine, other)) {
      return settle(*words);
    }
  }
  if (pending_for > settings.timeout) {
    settle(timed_out(mine, others, settings.timeout));
  }
}

std::vector<Witness> WatchLoop::witnesses(const Ledger& ledger) {
  peers_.read(peers_.others());
  std::vector<Witness> witnesses;
  for (const int member : ledger.members()) {
    if (const auto* group = peers_.pulse(member).find(ledger.group())) {
      witnesses.push_back({member, *group});
    }
  }
  return witnesses;
}

bool WatchLoop::host_leaves() {
  const int host = watch_.settings().store_host;
  return host >= 0 && host != watch_.settings().rank && store_->check({kHostLeaves});
}

// A rank that serves the store keeps it up until the others have read what they need to know: the words, or that it
// leaves in peace. They go on without a store then, and without a watcher.
void WatchLoop::farewell() {
  const auto& settings = watch_.settings();
  if (!over() && !host_left_) {
    publish(true);
  }
  if (settings.rank == settings.store_host) {
    store_->set(kHostLeaves, std::string("1"));
    linger();
  } else {
    store_->set(seen_key(settings.rank), std::string("1"));
  }
}

void WatchLoop::linger() {
  auto waited_for = peers_.others();
  const auto has_seen_or_ended = [this](int rank) {
    const auto processes = watch_.peers();
    return store_->check({seen_key(rank)}) ||
           (!processes.empty() && processes[static_cast<std::size_t>(rank)].has_ended());
  };
  const auto deadline = Watch::Clock::now() + kFarewell;
  while (std::erase_if(waited_for, has_seen_or_ended), !waited_for.empty() && Watch::Clock::now() < deadline) {
    std::this_thread::sleep_for(5ms);
  }
}

void WatchLoop::store_lost(const std::string& reason) {
  if (over() || watch_.stopping() || host_left_) {
    return;
  }
  const int host = watch_.settings().store_host;
  const Words words{host, host < 0 ? core::str("[world] the store is gone: ", first_line(reason))
                                   : core::str("[world] rank ", host, ", which serves the store, is gone")};
  const auto deadline = Watch::Clock::now() + 1s;
  for (listen(); !told_ && pipe_.fd() >= 0 && Watch::Clock::now() < deadline; listen()) {
    watch_.sleep(kTick, pipe_.fd());
  }
  watch_.settle(told_.value_or(words));
}

}  // namespace

Watcher::Watcher(std::shared_ptr<Watch> watch, c10::intrusive_ptr<c10d::Store> store) : watch_(std::move(watch)) {
  watch_->begin();
  thread_ = std::thread([shared = watch_, client = std::move(store)] { WatchLoop(*shared, client).run(); });
}

Watcher::~Watcher() {
  watch_->stop();
  thread_.join();
}

}  // namespace lockstep::comm
