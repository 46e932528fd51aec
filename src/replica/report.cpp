// SPDX-License-Identifier: Apache-2.0
// The words of a report.
#include "core/check.h"
#include "lockstep/replica/replica_check.h"

namespace lockstep {
namespace {

using core::str;

std::string listed(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += str(i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

std::string listed(const std::vector<std::int64_t>& index) {
  std::string text = "[";
  for (std::size_t i = 0; i < index.size(); ++i) {
    text += str(i == 0 ? "" : ", ", index[i]);
  }
  return text + "]";
}

std::string values_of(const ReplicaDifference& difference) {
  std::string text;
  for (const auto rank : difference.ranks) {
    text += str(text.empty() ? "" : ", ", difference.values[static_cast<std::size_t>(rank)]);
  }
  return text;
}

/// What the hashes of gradients say about the cause.
std::string cause_of(const ReplicaReport& report) {
  if (report.own_gradients.empty()) {
    return {};
  }
  std::string text = report.reductions_parted
                         ? "\n  reductions did not give all ranks the same gradients: suspect the transport, or the "
                           "memory that they lie in"
                         : "\n  reductions gave all ranks the same gradients: a rank's own state or arithmetic is at "
                           "fault";
  text += "\n  hashes of the ranks' own gradients so far:";
  for (const auto& hash : report.own_gradients) {
    text += " " + hash;
  }
  return text;
}

}  // namespace

const char* to_string(StateKind kind) {
  switch (kind) {
    case StateKind::LearningRate:
      return "learning rate";
    case StateKind::LossScale:
      return "loss scale";
    case StateKind::StepCount:
      return "step count";
    case StateKind::Gradient:
      return "gradient";
    case StateKind::Moment:
      return "moment";
    case StateKind::Master:
      return "master";
    case StateKind::Parameter:
      return "parameter";
    case StateKind::Buffer:
      return "buffer";
    case StateKind::Other:
      return "tensor";
  }
  return "tensor";
}

std::string ReplicaDifference::text() const {
  const auto what = str(to_string(kind), " ", name, " differs from rank ", reference, " on ", listed(ranks));
  if (values.empty()) {
    return str(what, ", and did no longer when the element was looked for");
  }
  return str(what, " at ", listed(index), ": ", values_of(*this), " instead of ",
             values[static_cast<std::size_t>(reference)],
             majority ? "" : "; there is no majority: either may be the faulty one");
}

std::string ReplicaReport::text() const {
  std::string text = str("replicas differ at step ", step, ": ");
  if (!structure.empty()) {
    return text + structure;
  }
  if (differing == 0) {
    return text + "they did, but no longer do";
  }
  for (std::size_t i = 0; i < differences.size(); ++i) {
    text += str(i == 0 ? "" : "\n  ", differences[i].text());
  }
  const auto more = differing - static_cast<std::int64_t>(differences.size());
  text += more > 0 ? str("\n  and ", more, " more") : "";
  text += cause_of(*this);
  return text + (resynced ? str("\n  everything was copied from rank ", healthiest) : "");
}

ReplicaError::ReplicaError(ReplicaReport report)
    : Error(core::message("replica.check", {report.text()})), report_(std::move(report)) {}

}  // namespace lockstep
