// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/join.h"

#include <optional>

#include "core/check.h"
#include "core/exception_text.h"
#include "ddp/replica.h"
#include "ddp/verify.h"

namespace lockstep {
namespace {

using core::Problem;
using core::str;

constexpr const char* kJoin = "ddp.join";

/// What keeps this rank from joining, or nothing.
std::string local_problem(const ddp::Replica& replica, const JoinOptions& options) {
  if (replica.reducer().has_roll_call()) {
    return core::message(kJoin, {"this model is in a join already"});
  }
  const auto collectives = replica.forward_collectives();
  if (collectives.empty() || options.throw_on_early_end) {
    return {};
  }
  return core::message(kJoin, {str("module '", collectives.front(),
                                   "' communicates in forward, where a rank without inputs cannot take part"),
                               "", "", "set throw_on_early_end, so that all ranks stop when the first one runs out"});
}

std::string describe(const JoinOptions& options, bool has_step) {
  return str("divisor = ", options.divisor == JoinDivisor::Live ? "Live" : "Initial",
             ", throw_on_early_end = ", options.throw_on_early_end ? "true" : "false",
             has_step ? ", a step" : ", no step");
}

void agree(const World& world, const ddp::Replica& replica, const JoinOptions& options, bool has_step) {
  const auto texts =
      ddp::gather_or_throw(world, describe(options, has_step), local_problem(replica, options), "join options");
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    core::check(texts[rank] == texts[0], kJoin, [&] {
      return Problem{str("options of rank ", rank, " differ from rank 0's"), texts[rank], texts[0]};
    });
  }
}

/// For as long as the join lasts. Without a step, parameters of ranks that have ended fall behind until it is over.
class Joined {
 public:
  Joined(ddp::Replica& replica, const std::shared_ptr<ddp::RollCall>& roll_call, bool has_step) : replica_(replica) {
    replica_.reducer().set_roll_call(roll_call);
    if (!has_step) {
      unwatched_.emplace(replica);
    }
  }
  ~Joined() { replica_.reducer().set_roll_call(nullptr); }
  Joined(const Joined&) = delete;
  Joined& operator=(const Joined&) = delete;

 private:
  ddp::Replica& replica_;
  std::optional<ddp::WatchPause> unwatched_;
};

void shadow_the_others(ddp::Reducer& reducer, const std::function<void()>& step) {
  while (reducer.shadow()) {
    if (step) {
      step();
    }
  }
}

/// The others wait for this rank: they get its words, whatever becomes of the exception here.
void tell_the_others(const World& world) {
  if (world.size() > 1) {
    world.fail(str("[rank ", world.rank(), "] ", core::text_of(std::current_exception())));
  }
}

}  // namespace

void join(const DataParallelBase& ddp, const std::function<void()>& body, const std::function<void()>& step,
          const JoinOptions& options) {
  if (!options.enable) {
    body();
    return;
  }
  auto& replica = *ddp.replica_;
  agree(ddp.world(), replica, options, step != nullptr);
  const auto roll_call = std::make_shared<ddp::RollCall>(ddp.world(), options);
  const Joined joined(replica, roll_call, step != nullptr);
  try {
    body();
    shadow_the_others(replica.reducer(), step);
    replica.broadcast(roll_call->source());
  } catch (const EndOfInputs&) {
    throw;  // on all ranks at once
  } catch (...) {
    tell_the_others(ddp.world());
    throw;
  }
}

}  // namespace lockstep
