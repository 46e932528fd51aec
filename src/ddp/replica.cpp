// SPDX-License-Identifier: Apache-2.0
#include "ddp/replica.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/capturing.h"
#include "core/check.h"
#include "ddp/model_tensors.h"
#include "ddp/proof.h"
#include "ddp/state_sync.h"
#include "ddp/verify.h"

namespace lockstep::ddp {
namespace {

using core::Problem;
using core::str;

constexpr const char* kConstruct = "ddp.construct";

void check_limits(const DataParallelOptions& options) {
  core::check(options.bucket_cap_mb > 0 && options.first_bucket_mb > 0, kConstruct, [&] {
    return Problem{"bucket limits must be positive", str(options.first_bucket_mb, " and ", options.bucket_cap_mb),
                   "sizes in MiB"};
  });
  core::check(options.gradient_predivide_factor >= 0, kConstruct, [&] {
    return Problem{"the pre-divide factor is negative", str(options.gradient_predivide_factor),
                   "0 or a positive number"};
  });
}

void check_not_wrapped(const NamedTensor& parameter) {
  core::check(torch::autograd::impl::post_acc_grad_hooks(parameter.tensor) == nullptr, kConstruct, [&] {
    return Problem{str("parameter ", parameter.name, " has a post-accumulate-grad hook already"), "", "",
                   "wrap a model once, and destroy an earlier wrapper first"};
  });
}

bool contains(const std::vector<NamedTensor>& list, const at::Tensor& tensor) {
  return std::any_of(list.begin(), list.end(), [&](const NamedTensor& named) { return named.tensor.is_same(tensor); });
}

}  // namespace

Replica::Replica(ModelView view, const World& world, const DataParallelOptions& options)
    : view_(std::move(view)), world_(world), options_(options) {
  const auto problem = local_problem();
  if (options_.init_sync) {
    verify_across_ranks(world_, problem.empty() ? tensors() : ModelTensors{}, problem);
    synchronise();
  } else if (!problem.empty()) {
    throw InputError(problem);
  }
  remember();
  reducer_ = std::make_shared<Reducer>(
      world_, trained_, options_,
      Reducer::Calls{[this] { check_parameters_unchanged(); }, [this](int source) { after_reduction(source); }});
  start_watching();
  reducer_->attach();
}

ModelTensors Replica::tensors() const {
  return participating(view_.list(), options_.ignore);
}

std::string Replica::local_problem() const {
  try {
    check_limits(options_);
    const auto trained = trainable(tensors().parameters);
    core::check(!trained.empty(), kConstruct, [] {
      return Problem{"no parameter of the model requires a gradient", "", "",
                     "a model that is not trained needs no DistributedDataParallel"};
    });
    for (const auto& parameter : trained) {
      check_not_wrapped(parameter);
    }
  } catch (const InputError& error) {
    return error.what();
  }
  return {};
}

void Replica::synchronise() const {
  broadcast(0);
  const auto difference = first_difference(world_, tensors());
  core::check(difference.empty(), kConstruct, [&] {
    return Problem{str("replicas are not equal after the broadcast: ", difference), "", "",
                   "a hook or another thread writes to the model, or memory is faulty"};
  });
}

void Replica::broadcast(int root) const {
  const auto all = tensors();
  auto both = all.parameters;
  both.insert(both.end(), all.buffers.begin(), all.buffers.end());
  broadcast_tensors(world_, both, root, "model state");
  if (reducer_) {
    reducer_->buffers_were_broadcast();
  }
}

std::vector<std::string> Replica::forward_collectives() const {
  return find_collectives_ ? find_collectives_() : std::vector<std::string>();
}

void Replica::broadcast_buffers(int source) const {
  if (options_.broadcast_buffers && has_buffers_ && world_.size() > 1) {
    broadcast_tensors(world_, tensors().buffers, source, "buffers");
  }
}

void Replica::start_watching() {
  const auto every = replica::every_by_environment().value_or(0);
  if (every > 0 && world_.size() > 1) {
    const auto list = [this] {
      auto kept_equal = tensors();
      if (!options_.broadcast_buffers) {
        kept_equal.buffers.clear();
      }
      return entries_of(kept_equal);
    };
    watch_.emplace(world_, list, every, OnMismatch::Throw);
  }
}

void Replica::after_reduction(int source) {
  broadcast_buffers(source);
  if (!core::capturing()) {
    watch_step();
  }
}

void Replica::watch_step() {
  if (watch_ && watch_pauses_ == 0) {
    watch_->step();
  }
}

void Replica::remember() {
  const auto all = tensors();
  trained_ = trainable(all.parameters);
  for (const auto& parameter : all.parameters) {
    known_.push_back({parameter.tensor, parameter.tensor.requires_grad()});
  }
  identities_ = view_.identities ? view_.identities() : std::vector<const void*>();
  has_buffers_ = !all.buffers.empty();
}

/// Without names and copies: this runs in every step.
bool Replica::looks_unchanged() const {
  return view_.identities && view_.identities() == identities_ &&
         std::all_of(known_.begin(), known_.end(),
                     [](const Known& known) { return known.tensor.requires_grad() == known.trained; });
}

void Replica::check_parameters_unchanged() const {
  if (looks_unchanged()) {
    return;
  }
  const auto now = trainable(tensors().parameters);
  std::size_t i = 0;
  while (i < now.size() && i < trained_.size() && now[i].tensor.is_same(trained_[i].tensor)) {
    ++i;
  }
  if (i == now.size() && i == trained_.size()) {
    return;
  }
  const auto& name = i < now.size() && !contains(trained_, now[i].tensor) ? now[i].name : trained_[i].name;
  const auto text = core::message("ddp.backward", {str("parameter ", name,
                                                       " was replaced, frozen, unfrozen, added or "
                                                       "removed after the model was wrapped"),
                                                   "", "", "wrap the model again after such a change"});
  if (world_.size() > 1) {
    world_.fail(text);
    world_.check();
  }
  throw InputError(text);
}

}  // namespace lockstep::ddp
