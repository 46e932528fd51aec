// SPDX-License-Identifier: Apache-2.0
#include "ddp/proof.h"

#include "core/check.h"
#include "core/digest.h"

namespace lockstep::ddp {
namespace {

using core::str;

std::vector<std::string> digests(const ModelTensors& tensors) {
  std::vector<std::string> result;
  for (const auto* list : {&tensors.parameters, &tensors.buffers}) {
    for (const auto& named : *list) {
      result.push_back(core::digest_text(core::digest(named.tensor)));
    }
  }
  return result;
}

const NamedTensor& tensor_at(const ModelTensors& tensors, std::size_t index) {
  const auto parameters = tensors.parameters.size();
  return index < parameters ? tensors.parameters[index] : tensors.buffers[index - parameters];
}

/// Ranks whose `index`-th digest differs from rank 0's.
std::vector<std::size_t> differing_ranks(const std::vector<std::string>& all, std::size_t index) {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].compare(index * 16, 16, all[0], index * 16, 16) != 0) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::string report(const ModelTensors& tensors, std::size_t index, const std::vector<std::string>& all,
                   const std::vector<std::size_t>& ranks) {
  const bool parameter = index < tensors.parameters.size();
  std::string text = str(parameter ? "parameter " : "buffer ", tensor_at(tensors, index).name,
                         " differs from rank 0 (digest ", all[0].substr(index * 16, 16), ") on");
  for (const auto rank : ranks) {
    text += str(" rank ", rank, " (", all[rank].substr(index * 16, 16), ")");
  }
  return text;
}

}  // namespace

std::uint64_t combined_digest(const ModelTensors& tensors) {
  std::uint64_t combined = 0;
  for (const auto* list : {&tensors.parameters, &tensors.buffers}) {
    for (const auto& named : *list) {
      combined = core::chain(combined, core::digest(named.tensor));
    }
  }
  return combined;
}

std::string first_difference(const World& world, const ModelTensors& tensors) {
  std::string mine;
  for (const auto& digest : digests(tensors)) {
    mine += digest;
  }
  const auto all = world.all_gather_text(mine, {.name = "replica digests"});
  for (std::size_t index = 0; index * 16 < mine.size(); ++index) {
    const auto ranks = differing_ranks(all, index);
    if (!ranks.empty()) {
      return report(tensors, index, all, ranks);
    }
  }
  return {};
}

}  // namespace lockstep::ddp
