// SPDX-License-Identifier: Apache-2.0
#include "ddp/roll_call.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/check.h"

namespace lockstep::ddp {
namespace {

/// Keeps a roll call from being paired with any bucket.
constexpr std::uint32_t kFirstTag = 0x6a6f696e;

}  // namespace

RollCall::RollCall(const World& world, const JoinOptions& options)
    : world_(world), options_(options), answers_(static_cast<std::size_t>(world.size()), 0) {}

void RollCall::call(Answer mine) {
  auto answers = at::zeros({world_.size()}, at::kInt);
  answers.mutable_data_ptr<int>()[world_.rank()] = static_cast<int>(mine);
  const auto shared = answers.to(world_.device());
  world_.all_reduce(shared, ReduceOp::Max, {"join: which ranks have inputs", kFirstTag + calls_++}).wait();
  answers = shared.cpu();
  std::copy_n(answers.const_data_ptr<int>(), answers_.size(), answers_.begin());
  if (!anyone_live()) {
    return;
  }
  const auto first = std::find(answers_.begin(), answers_.end(), static_cast<int>(Answer::Live));
  source_ = static_cast<int>(first - answers_.begin());
  if (options_.throw_on_early_end && count_at_least(Answer::Live) < world_.size()) {
    raise_early_end();
  }
}

int RollCall::count_at_least(Answer answer) const {
  return static_cast<int>(
      std::count_if(answers_.begin(), answers_.end(), [&](int a) { return a >= static_cast<int>(answer); }));
}

bool RollCall::anyone_live() const {
  return count_at_least(Answer::Live) > 0;
}

int RollCall::divisor() const {
  return options_.divisor == JoinDivisor::Live ? count_at_least(Answer::Brings) : world_.size();
}

void RollCall::raise_early_end() const {
  std::string ended;
  for (std::size_t rank = 0; rank < answers_.size(); ++rank) {
    if (answers_[rank] != static_cast<int>(Answer::Live)) {
      ended += core::str(ended.empty() ? "" : ", ", rank);
    }
  }
  throw EndOfInputs(core::message("ddp.join", {core::str("out of inputs: rank ", ended), "", "",
                                               "every rank stops here, as throw_on_early_end asks"}));
}

}  // namespace lockstep::ddp
