// SPDX-License-Identifier: Apache-2.0
#include "ddp/proof.h"

#include "replica/diagnosis.h"

namespace lockstep::ddp {

replica::Entries entries_of(const ModelTensors& tensors) {
  replica::Entries entries;
  for (const auto& named : tensors.parameters) {
    entries.push_back({StateKind::Parameter, named.name, named.tensor});
  }
  for (const auto& named : tensors.buffers) {
    entries.push_back({StateKind::Buffer, named.name, named.tensor});
  }
  return entries;
}

std::string first_difference(const World& world, const ModelTensors& tensors) {
  const auto entries = entries_of(tensors);
  if (replica::equal_on_all_ranks(world, entries)) {
    return {};
  }
  const auto report = replica::diagnose(world, entries, 0, /*located=*/1);
  return report.differences.empty() ? report.structure : report.differences[0].text();
}

}  // namespace lockstep::ddp
