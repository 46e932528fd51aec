// SPDX-License-Identifier: Apache-2.0
// What ended a world, as one rank knows it. It is set once; every thread that waits for something of the world waits
// here, so that it is woken by the failure too.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

namespace lockstep::comm {

/// Whose fault it is (-1: not known) and what is said about it.
struct Words {
  int origin = -1;
  std::string text;
};

/// Exceptions of c10 carry a stack trace after their first line.
std::string first_line(const std::string& text);

class Failure {
 public:
  bool happened() const noexcept { return happened_.load(std::memory_order_acquire); }

  /// Records the words, unless there are some already, and wakes all that wait. True if these are the ones that count.
  bool set(Words words);

  std::optional<Words> words() const;

  /// Throws WorldError with the words; `context` goes on a line of its own. REQUIRES: it has happened.
  [[noreturn]] void raise(const std::string& context = {}) const;

  void check() const {
    if (happened()) [[unlikely]] {
      raise();
    }
  }

  /// Runs `change` under the lock and wakes those who wait.
  template <class Change>
  void update(Change&& change) {
    {
      std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  /// Waits until `ready` (called under the lock), a failure, or the limit. True unless the limit passed first.
  template <class Ready>
  bool wait(Ready&& ready, std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return ready() || words_.has_value(); });
  }

 private:
  std::atomic<bool> happened_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Words> words_;
};

}  // namespace lockstep::comm
