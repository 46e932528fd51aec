// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/launch.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/error_file.h"
#include "comm/failure.h"
#include "comm/rendezvous.h"
#include "core/check.h"
#include "core/exception_text.h"

namespace lockstep {
namespace {

using core::text_of;

WorldOptions options_of_rank(WorldOptions options, int rank, int size) {
  options.rank = rank;
  options.size = size;
  options.local_rank = rank;
  options.local_size = size;
  options.launcher_events_fd = -1;
  if (options.device && options.device->is_cuda()) {
    options.device = c10::Device(c10::kCUDA);
  }
  return options;
}

// Tells all ranks of the exception; what comes back is that, or an earlier failure's words.
std::string words_of(const World& world, const std::exception_ptr& error) {
  const auto text = core::str("[rank ", world.rank(), "] ", text_of(error));
  return world.fail(text);
}

int origin_of(const World& world) {
  try {
    world.check();
  } catch (const WorldError& error) {
    return error.origin();
  }
  return -1;
}

class FirstFailure {
 public:
  void add(int origin, const std::string& text) {
    std::lock_guard lock(mutex_);
    if (!words_) {
      words_ = comm::Words{origin, text};
    }
  }

  void rethrow() const {
    if (words_) {
      throw WorldError(words_->origin, words_->text);
    }
  }

 private:
  std::mutex mutex_;
  std::optional<comm::Words> words_;
};

void run_rank(const WorldOptions& options, const std::function<void(World&)>& fn, FirstFailure& first) {
  try {
    World world(options);
    try {
      fn(world);
    } catch (...) {
      const auto words = words_of(world, std::current_exception());
      first.add(origin_of(world), words);
    }
  } catch (const WorldError& error) {
    first.add(error.origin(), error.what());
  } catch (...) {
    first.add(options.rank, core::str("[rank ", options.rank, "] ", text_of(std::current_exception())));
  }
}

int report(const std::string& words) {
  std::fprintf(stderr, "%s\n", words.c_str());
  comm::write_error_file(words);
  return 1;
}

}  // namespace

void run_ranks(int size, const std::function<void(World&)>& fn, const WorldOptions& defaults) {
  auto shared = defaults;
  shared.store = c10::make_intrusive<c10d::HashStore>();
  std::vector<WorldOptions> options;
  for (int rank = 0; rank < std::max(size, 1); ++rank) {
    options.push_back(comm::completed(options_of_rank(shared, rank, size)));
  }
  FirstFailure first;
  std::vector<std::thread> threads;
  for (const auto& mine : options) {
    threads.emplace_back([&] { run_rank(mine, fn, first); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  first.rethrow();
}

int run_main(World& world, const std::function<void()>& fn) {
  try {
    fn();
    return 0;
  } catch (const WorldError& error) {
    words_of(world, std::current_exception());
    return report(error.what());
  } catch (...) {
    const auto own = core::str("[rank ", world.rank(), "] ", text_of(std::current_exception()));
    const auto first = world.fail(own);
    return report(first == own ? own : core::str(own, "\n  after ", first));
  }
}

int run_main(const std::function<void(World&)>& fn, const WorldOptions& defaults) {
  std::optional<World> world;
  try {
    world = World::from_environment(defaults);
  } catch (...) {
    return report(text_of(std::current_exception()));
  }
  return run_main(*world, [&] { fn(*world); });
}

}  // namespace lockstep
