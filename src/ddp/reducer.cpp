// SPDX-License-Identifier: Apache-2.0
#include "ddp/reducer.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/check.h"

namespace lockstep::ddp {
namespace {

using core::Problem;
using core::str;
namespace ag = torch::autograd;

class GradientHook : public ag::PostAccumulateGradHook {
 public:
  GradientHook(std::weak_ptr<Reducer> reducer, int index) : reducer_(std::move(reducer)), index_(index) {}

  void operator()(const at::Tensor& /*parameter*/) override {
    if (const auto reducer = reducer_.lock()) {
      reducer->on_gradient(index_);
    }
  }

 private:
  std::weak_ptr<Reducer> reducer_;
  int index_;
};

core::BucketLimits limits_of(const DataParallelOptions& options) {
  constexpr double kMiB = 1 << 20;
  return {static_cast<std::int64_t>(options.first_bucket_mb * kMiB),
          static_cast<std::int64_t>(options.bucket_cap_mb * kMiB)};
}

}  // namespace

Reducer::Reducer(const World& world, const std::vector<NamedTensor>& parameters, const DataParallelOptions& options,
                 Calls calls)
    : world_(world),
      options_(options),
      calls_(std::move(calls)),
      slots_(parameters, limits_of(options)),
      queue_(slots_.layout(), options.overlap),
      hook_(all_reduce_hook(world)),
      divisor_(world.size()),
      usage_(parameters.size()),
      left_alone_(parameters.size()) {
  statistics_.buckets = static_cast<std::int64_t>(slots_.layout().buckets.size());
  if (world.size() > 1) {
    slots_.allocate();
  }
}

Reducer::~Reducer() {
  for (int i = 0; i < slots_.size(); ++i) {
    ag::impl::set_post_acc_grad_hooks(slots_.parameter(i), nullptr);
  }
}

void Reducer::attach() {
  for (int i = 0; i < slots_.size(); ++i) {
    ag::impl::set_post_acc_grad_hooks(slots_.parameter(i), std::make_unique<GradientHook>(weak_from_this(), i));
  }
}

void Reducer::add_silence(int change) {
  const std::lock_guard lock(mutex_);
  silences_ += change;
}

void Reducer::raise(const Problem& problem) const {
  const auto text = core::message("ddp.backward", problem);
  if (world_.size() > 1) {
    world_.fail(text);
    world_.check();
  }
  throw InputError(text);
}

void Reducer::begin() {
  open(silences_ > 0);
  notify_at_end_of_backward(weak_from_this());
  running_ = true;
}

void Reducer::open(bool quiet) {
  world_.check();
  quiet_ = quiet;
  if (!quiet_) {
    calls_.before();
    answer(RollCall::Answer::Live);
  }
  start_pass();
}

void Reducer::start_pass() {
  queue_.begin();
  slots_.begin(1.0 / predivide_factor());
  finishers_.clear();
}

double Reducer::predivide_factor() const {
  return options_.gradient_predivide_factor > 0 ? options_.gradient_predivide_factor : divisor_;
}

void Reducer::reset() {
  running_ = false;
  slots_.end();
  finishers_.clear();
  std::fill(left_alone_.begin(), left_alone_.end(), at::Tensor());
}

void Reducer::on_gradient(int index) {
  const std::lock_guard lock(mutex_);
  if (!running_) {
    begin();
  }
  const bool in_time = queue_.fired(index);
  if (quiet_) {
    usage_.note(index, usage_.here(index) || slots_.parameter(index).grad().defined());
    return;
  }
  if (!in_time) {
    raise_late(index);
  }
  if (slots_.take(index)) {
    usage_.note(index);
  }
  launch_ready();
}

void Reducer::raise_late(int index) const {
  raise({str("parameter ", slots_.name(index), " got another gradient after its bucket had been sent"),
         str("gradient number ", queue_.fires(index), " of this backward pass"),
         str("at most ", queue_.expected(index), " as in the passes before"),
         "set overlap = false for graphs whose re-entrant passes vary from step to step"});
}

void Reducer::launch_ready() {
  for (int bucket = queue_.pop_ready(); bucket >= 0; bucket = queue_.pop_ready()) {
    launch(bucket);
  }
}

/// Step and place are part of what ranks compare: a bucket is never paired with another one, or with one of another
/// step.
std::uint32_t Reducer::tag(int place) const {
  const auto places = static_cast<std::uint32_t>(statistics_.buckets) + 1;
  return step_ * places + static_cast<std::uint32_t>(place);
}

GradientBucket Reducer::bucket_for_hook(int index) const {
  const auto& bucket = slots_.layout().buckets[static_cast<std::size_t>(index)];
  GradientBucket handed;
  handed.index = index;
  handed.is_last = index + 1 == statistics_.buckets;
  handed.step = step_;
  handed.buffer = slots_.bucket(index);
  handed.remaining_factor = predivide_factor() / divisor_;
  handed.tag = tag(index);
  if (hook_is_users_) {
    for (const int tensor : bucket.tensors) {
      handed.gradients.push_back(slots_.alias(tensor));
      handed.names.push_back(slots_.name(tensor));
    }
  }
  return handed;
}

void Reducer::launch(int bucket) {
  ++statistics_.all_reduces;
  statistics_.bytes_reduced += slots_.bucket_bytes(bucket);
  if (slots_.in_place()) {
    return;
  }
  slots_.deliver(bucket);
  const auto handed = bucket_for_hook(bucket);
  finishers_.push_back(hook_(handed));
  if (!finishers_.back()) {
    raise({"the communication hook returned no function", "an empty one", "what finishes the reduction"});
  }
}

void Reducer::set_hook(CommHook hook) {
  const std::lock_guard lock(mutex_);
  const auto passes = statistics_.reduced_backwards + statistics_.quiet_backwards + statistics_.shadowed_backwards;
  const bool used = passes > 0 || running_;
  core::check(hook && !hook_is_users_ && !used, "ddp.register_comm_hook", [&] {
    return Problem{!hook  ? "the hook is empty"
                   : used ? "backward has run already"
                          : "there is a hook already",
                   "", "", "register one hook, before the first backward"};
  });
  slots_.allocate();
  hook_ = digests_ ? digests_->around(std::move(hook)) : std::move(hook);
  hook_is_users_ = true;
}

void Reducer::backward_done() {
  const std::lock_guard lock(mutex_);
  try {
    quiet_ ? end_quiet() : end_reduced();
  } catch (...) {
    reset();
    throw;
  }
  queue_.learn();
  slots_.separate();
  reset();
}

void Reducer::backward_failed() noexcept {
  const std::lock_guard lock(mutex_);
  // Buckets already sent stay in flight; their tensors belong to the arena and are overwritten by the next pass only
  // after its own reductions, which are ordered behind these.
  reset();
}

void Reducer::end_quiet() {
  ++statistics_.quiet_backwards;
  last_was_quiet_ = true;
}

void Reducer::end_reduced() {
  settle_unused();
  reduce();
  ++statistics_.reduced_backwards;
}

/// The collectives of a pass that are still to come, the same on ranks that shadow it.
void Reducer::reduce() {
  for (int bucket = queue_.pop_any(); bucket >= 0; bucket = queue_.pop_any()) {
    launch(bucket);
  }
  if (options_.unused == UnusedParameters::Detect) {
    const auto device = slots_.layout().groups.front().device;
    usage_.share(world_, device, tag(static_cast<int>(statistics_.buckets)));
  }
  wait_for_buckets();
  publish();
  calls_.after(source_);
  ++step_;
  usage_.forget();
  last_was_quiet_ = false;
}

void Reducer::settle_unused() {
  statistics_.unused.clear();
  for (int i = 0; i < slots_.size(); ++i) {
    if (slots_.taken(i)) {
      continue;
    }
    if (!brings(i)) {
      usage_.note(i, false);  // or what a quiet pass left has been dropped since
      statistics_.unused.push_back(slots_.name(i));
      // What an earlier pass left in `.grad` still takes part, but must come back if no rank adds to it.
      const auto& grad = slots_.parameter(i).grad();
      left_alone_[static_cast<std::size_t>(i)] = grad.defined() && !slots_.in_place() ? grad.clone() : grad;
    }
    slots_.take(i);
  }
  if (options_.unused == UnusedParameters::Error && !statistics_.unused.empty()) {
    raise(unused_problem(statistics_.unused, str("rank ", world_.rank(), " in step ", step_)));
  }
}

void Reducer::wait_for_buckets() {
  const auto start = std::chrono::steady_clock::now();
  for (const auto& finish : finishers_) {
    finish();
  }
  statistics_.exposed_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Reducer::publish() {
  const bool all = options_.unused == UnusedParameters::Error;
  for (int i = 0; i < slots_.size(); ++i) {
    if (all || usage_.anywhere(i)) {
      slots_.publish(i);
    } else {
      slots_.parameter(i).mutable_grad() = left_alone_[static_cast<std::size_t>(i)];
    }
  }
}

DataParallelStatistics Reducer::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

bool Reducer::last_was_quiet() const {
  const std::lock_guard lock(mutex_);
  return last_was_quiet_;
}

}  // namespace lockstep::ddp
