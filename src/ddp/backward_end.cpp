// SPDX-License-Identifier: Apache-2.0
#include "ddp/backward_end.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>

namespace lockstep::ddp {
namespace {

namespace ag = torch::autograd;

/// How many backward passes enclose the current one. The engine keeps the number but has no accessor for it; what it
/// does hand out is a pointer to another member of the same task.
int current_depth() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr std::size_t offset = offsetof(ag::GraphTask, exec_info_);
#pragma GCC diagnostic pop
  const auto* member = reinterpret_cast<const char*>(ag::get_current_graph_task_exec_info());
  return reinterpret_cast<const ag::GraphTask*>(member - offset)->reentrant_depth_;
}

/// Lives in the callback of the outermost task. The engine drops callbacks of a failed task unrun.
class Finish {
 public:
  explicit Finish(std::weak_ptr<BackwardListener> listener) : listener_(std::move(listener)) {}
  Finish(const Finish&) = delete;
  Finish& operator=(const Finish&) = delete;
  ~Finish() {
    if (const auto listener = listener_.lock(); listener && !ran_) {
      listener->backward_failed();
    }
  }

  void run() {
    ran_ = true;
    if (const auto listener = listener_.lock()) {
      listener->backward_done();
    }
  }

 private:
  std::weak_ptr<BackwardListener> listener_;
  bool ran_ = false;
};

/// Lives in the callback of an inner task and is destroyed with that task, when the enclosing one is current again:
/// the moment to register there.
class Climb {
 public:
  explicit Climb(std::weak_ptr<BackwardListener> listener) : listener_(std::move(listener)) {}
  Climb(const Climb&) = delete;
  Climb& operator=(const Climb&) = delete;
  ~Climb() {
    try {
      notify_at_end_of_backward(listener_);
    } catch (...) {
      // No enclosing task: the whole pass is being unwound.
      if (const auto listener = listener_.lock()) {
        listener->backward_failed();
      }
    }
  }

 private:
  std::weak_ptr<BackwardListener> listener_;
};

}  // namespace

void notify_at_end_of_backward(const std::weak_ptr<BackwardListener>& listener) {
  auto& engine = ag::Engine::get_default_engine();
  if (ag::get_current_graph_task_exec_info() != nullptr && current_depth() > 0) {
    engine.queue_callback([climb = std::make_shared<Climb>(listener)] {});
  } else {
    engine.queue_callback([finish = std::make_shared<Finish>(listener)] { finish->run(); });
  }
}

}  // namespace lockstep::ddp
