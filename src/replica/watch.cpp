// SPDX-License-Identifier: Apache-2.0
#include "replica/watch.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "core/check.h"
#include "core/env.h"
#include "replica/diagnosis.h"
#include "replica/fingerprint.h"

namespace lockstep::replica {

constexpr const char* kOptions = "replica.options";

std::optional<std::int64_t> every_by_environment() {
  const auto every = core::env_integer("LOCKSTEP_CHECK_EVERY", kOptions);
  core::check(!every || *every >= 0, kOptions, [&] {
    return core::Problem{"environment variable LOCKSTEP_CHECK_EVERY is negative", core::str(*every),
                         "a number of steps, or 0 for no check"};
  });
  return every;
}

Watch::Watch(const World& world, std::function<Entries()> list, std::int64_t every, OnMismatch on_mismatch)
    : world_(world), list_(std::move(list)), every_(every_by_environment().value_or(every)), on_mismatch_(on_mismatch) {
  core::check(every_ >= 0, kOptions, [&] {
    return core::Problem{"the steps between two checks are negative", core::str(every_),
                         "a number of steps, or 0 for no check"};
  });
}

void Watch::step() {
  ++steps_;
  if (unread_) {
    verdict();
  }
  if (every_ == 0 || steps_ % every_ != 0) {
    return;
  }
  compare();
  if (!world_.device().is_cuda()) {
    verdict();
  }
}

void Watch::compare() {
  if (world_.size() == 1) {
    return;
  }
  const auto row = row_on(world_.device(), list_());
  if (!rows_.defined()) {
    rows_ = at::empty({world_.size() * row.numel()}, row.options());
  }
  world_.all_gather(rows_, row, {.name = "replica check"}).wait();
  compared_at_ = steps_;
  unread_ = true;
}

std::optional<ReplicaReport> Watch::verdict() {
  unread_ = false;
  if (!rows_.defined() || rows_are_equal(rows_.view({world_.size(), -1}).cpu())) {
    return std::nullopt;
  }
  const auto entries = list_();
  auto report = diagnose(world_, entries, compared_at_);
  if (evidence_ && report.structure.empty()) {  // else other ranks may have been given other options
    report.own_gradients = world_.all_gather_text(evidence_(), {.name = "hashes of gradients"});
  }
  act(report, entries);
  return report;
}

void Watch::act(ReplicaReport& report, const Entries& entries) {
  const bool can_copy = report.structure.empty();
  if (on_mismatch_ == OnMismatch::Resync && can_copy) {
    copy_from(world_, entries, report.healthiest);
    report.resynced = equal_on_all_ranks(world_, list_());
  }
  last_report_ = report;
  if (on_mismatch_ == OnMismatch::Throw || (on_mismatch_ == OnMismatch::Resync && !report.resynced)) {
    throw ReplicaError(report);
  }
  if (world_.rank() == 0) {
    TORCH_WARN(core::message("replica.check", {report.text()}));
  }
}

}  // namespace lockstep::replica
