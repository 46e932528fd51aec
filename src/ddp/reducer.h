// SPDX-License-Identifier: Apache-2.0
// From the first gradient of a backward pass to averaged gradients at its end.
//
//   hook (one per parameter) -> slot in the arena -> bucket whole -> all-reduce -> end of backward: wait, publish
//
// Within a join, a rank that has run out of inputs shadows such passes: the same collectives without a backward.
// Hooks run on autograd's threads and the end of backward on one of them or the caller's, so all state is under one
// mutex, held for microseconds while backward runs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/check.h"
#include "ddp/backward_end.h"
#include "ddp/bucket_queue.h"
#include "ddp/gradient_slots.h"
#include "ddp/hooks/gradient_digests.h"
#include "ddp/roll_call.h"
#include "ddp/usage.h"
#include "lockstep/comm/world.h"
#include "lockstep/ddp/data_parallel.h"

namespace lockstep::ddp {

class Reducer : public BackwardListener, public std::enable_shared_from_this<Reducer> {
 public:
  /// What the owner wants to do at both ends of a pass that reduces. Both may throw; `before` runs on the first
  /// gradient, `after` is told the rank whose buffers count.
  struct Calls {
    std::function<void()> before;
    std::function<void(int source)> after;
  };

  Reducer(const World& world, const std::vector<NamedTensor>& parameters, const DataParallelOptions& options,
          Calls calls);
  ~Reducer() override;

  /// Hangs the hooks on the parameters. Separate from construction, since hooks refer to a shared pointer.
  void attach();

  /// Passes that start while at least one silence is in force stay on this rank.
  void add_silence(int change);

  /// Reduces what quiet passes have accumulated, without a pass of its own. Throws InputError inside a backward pass.
  void reduce_now();

  /// Throws InputError after the first backward, for a second hook, and for an empty one.
  void set_hook(CommHook hook);

  /// Hashes each bucket before and after its reduction from the next pass on. Throws InputError once a pass is
  /// recorded.
  std::shared_ptr<const GradientDigests> hash_gradients();

  /// Within a join: passes that reduce start with a roll call. nullptr ends it.
  void set_roll_call(std::shared_ptr<RollCall> roll_call);
  bool has_roll_call() const;
  /// A roll call for ranks that must know before they communicate in forward, where the options ask for it.
  void before_forward();
  /// Takes part in the other ranks' next reduced pass, with what quiet passes have left here and zeros elsewhere.
  /// False, and nothing done, once no rank has inputs.
  bool shadow();

  void on_gradient(int index);
  void backward_done() override;
  void backward_failed() noexcept override;

  DataParallelStatistics statistics() const;
  /// All ranks have the same buffers again, whatever passes they have had.
  void buffers_were_broadcast();
  /// The last pass that ended did so under a silence, and buffers have not been broadcast since.
  bool last_was_quiet() const;
  std::string describe() const { return slots_.describe(); }

 private:
  void begin();
  void open(bool quiet);
  void answer(RollCall::Answer mine);
  void start_pass();
  void reset();
  void launch(int bucket);
  GradientBucket bucket_for_hook(int bucket) const;
  double predivide_factor() const;
  std::uint32_t tag(int place) const;
  void launch_ready();
  void end_quiet();
  void end_reduced();
  bool brings(int index) const;
  void take_what_quiet_passes_left();
  void settle_unused();
  void reduce();
  void wait_for_buckets();
  void publish();
  [[noreturn]] void raise(const core::Problem& problem) const;
  void raise_late(int index) const;

  World world_;
  DataParallelOptions options_;
  Calls calls_;
  GradientSlots slots_;
  BucketQueue queue_;

  mutable std::mutex mutex_;
  int silences_ = 0;
  bool running_ = false;  // between the first gradient of a pass and its end
  bool quiet_ = false;
  bool last_was_quiet_ = false;
  std::uint32_t step_ = 0;
  CommHook hook_;
  bool hook_is_users_ = false;
  bool recorded_ = false;  // some pass was captured: what it does when replayed is settled
  std::shared_ptr<GradientDigests> digests_;
  std::shared_ptr<RollCall> roll_call_;
  int divisor_;                                   // of the sum over ranks
  int source_ = 0;                                // the rank whose buffers count
  std::vector<std::function<void()>> finishers_;  // one for each bucket sent, in order
  Usage usage_;
  std::vector<at::Tensor> left_alone_;  // gradients of parameters this rank did not use
  DataParallelStatistics statistics_;
};

}  // namespace lockstep::ddp
