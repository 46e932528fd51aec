// SPDX-License-Identifier: Apache-2.0
#include "replica/diagnosis.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <sstream>

#include "core/check.h"
#include "ddp/state_sync.h"
#include "replica/ballot.h"
#include "replica/fingerprint.h"
#include "replica/locate.h"

namespace lockstep::replica {
namespace {

using core::str;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string line_at(const std::vector<std::string>& lines, std::size_t place) {
  return place < lines.size() ? lines[place] : "nothing";
}

/// Where a rank's list of entries parts from rank 0's; empty where all are alike.
std::string structural_difference(const World& world, const Entries& entries) {
  std::string mine;
  for (const auto& entry : entries) {
    mine += description(entry) + "\n";
  }
  const auto texts = world.all_gather_text(mine, {.name = "replica structure"});
  const auto other = std::find_if(texts.begin(), texts.end(), [&](const auto& text) { return text != texts[0]; });
  if (other == texts.end()) {
    return {};
  }
  const auto first = lines_of(texts[0]);
  const auto theirs = lines_of(*other);
  std::size_t place = 0;
  while (place < first.size() && place < theirs.size() && first[place] == theirs[place]) {
    ++place;
  }
  return str("rank ", other - texts.begin(), " holds ", line_at(theirs, place), " where rank 0 holds ",
             line_at(first, place), " (", theirs.size(), " pieces of state against ", first.size(), ")");
}

Table table_of(const at::Tensor& rows) {
  Table table;
  for (std::int64_t rank = 0; rank < rows.size(0); ++rank) {
    const auto* row = rows.const_data_ptr<std::int64_t>() + rank * rows.size(1);
    table.emplace_back(row, row + rows.size(1));
  }
  return table;
}

ReplicaDifference difference_of(const World& world, const Entry& entry, const Ballot& ballot) {
  ReplicaDifference difference{entry.kind, entry.name, {}, ballot.reference, ballot.majority, ballot.minority, {}};
  if (auto element = first_differing_element(world, entry.tensor)) {
    difference.index = std::move(element->index);
    difference.values = std::move(element->values);
  }
  return difference;
}

/// Copies values that live on the host, packed into one tensor of bytes.
void copy_host_values(const World& world, const Entries& entries, int root) {
  std::vector<at::Tensor> parts;
  for (const auto& entry : entries) {
    parts.push_back(entry.tensor.reshape({-1}).view(at::ScalarType::Byte));
  }
  const auto packed = at::cat(parts).to(world.device());
  world.broadcast(packed, root, {.name = "host values"}).wait();
  const auto received = packed.cpu();
  std::int64_t offset = 0;
  for (const auto& entry : entries) {
    const auto bytes = static_cast<std::int64_t>(entry.tensor.nbytes());
    const auto value = received.narrow(0, offset, bytes).clone().view(entry.tensor.scalar_type());
    entry.put(value.view(entry.tensor.sizes()));
    offset += bytes;
  }
}

}  // namespace

bool rows_are_equal(const at::Tensor& rows) {
  return rows.eq(rows[0]).all().item<bool>();
}

bool equal_on_all_ranks(const World& world, const Entries& entries) {
  return world.size() == 1 || rows_are_equal(gathered(world, row_on(world.device(), entries), "replica check"));
}

ReplicaReport diagnose(const World& world, const Entries& entries, std::int64_t step, std::size_t located) {
  ReplicaReport report;
  report.step = step;
  report.structure = structural_difference(world, entries);
  if (!report.structure.empty() || entries.empty()) {
    return report;
  }
  const auto rows = gathered(world, digests_on(world.device(), entries), "replica digests");
  const auto ballots = disputes(table_of(rows));
  report.differing = static_cast<std::int64_t>(ballots.size());
  report.healthiest = healthiest(ballots, world.size());
  report.reductions_parted = std::any_of(ballots.begin(), ballots.end(), [&](const Ballot& ballot) {
    return entries[ballot.entry].kind == StateKind::Gradient;
  });
  for (std::size_t i = 0; i < ballots.size() && i < located; ++i) {
    report.differences.push_back(difference_of(world, entries[ballots[i].entry], ballots[i]));
  }
  return report;
}

void copy_from(const World& world, const Entries& entries, int root) {
  const c10::NoGradGuard no_grad;
  Entries on_host;
  std::vector<NamedTensor> live;
  for (const auto& entry : entries) {
    if (entry.put) {
      on_host.push_back(entry);
    } else {
      live.push_back({entry.name, entry.tensor});
    }
  }
  ddp::broadcast_tensors(world, live, root, "replica state");
  if (!on_host.empty()) {
    copy_host_values(world, on_host, root);
  }
}

}  // namespace lockstep::replica
