// SPDX-License-Identifier: Apache-2.0
#include "replica/fingerprint.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <span>

#include "core/check.h"
#include "core/digest.h"
#include "core/moved.h"

namespace lockstep::replica {
namespace {

constexpr std::int64_t kRow = 3;

/// Entries of one device.
struct Share {
  c10::Device device;
  std::vector<at::Tensor> tensors;
  std::vector<std::size_t> places;  // of their digests in the entries' order
};

std::vector<Share> shares_of(const Entries& entries) {
  std::vector<Share> shares;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto device = entries[i].tensor.device();
    auto share = std::find_if(shares.begin(), shares.end(), [&](const Share& s) { return s.device == device; });
    if (share == shares.end()) {
      share = shares.insert(share, Share{device, {}, {}});
    }
    share->tensors.push_back(entries[i].tensor);
    share->places.push_back(i);
  }
  return shares;
}

std::int64_t structure_of(const Entries& entries) {
  std::uint64_t structure = entries.size();
  for (const auto& entry : entries) {
    structure = core::chain(structure, core::digest_bytes(std::as_bytes(std::span(entry.name))));
    structure = core::chain(structure, static_cast<std::uint64_t>(entry.kind));
    structure = core::chain(structure, static_cast<std::uint64_t>(entry.tensor.scalar_type()));
    for (const auto size : entry.tensor.sizes()) {
      structure = core::chain(structure, static_cast<std::uint64_t>(size));
    }
  }
  return static_cast<std::int64_t>(structure);
}

std::int64_t digest_on_host(const Share& share) {
  return static_cast<std::int64_t>(core::digest(core::digests_of(share.tensors)));
}

}  // namespace

at::Tensor digests_on(c10::Device where, const Entries& entries) {
  const c10::NoGradGuard no_grad;
  const auto all = at::empty({static_cast<std::int64_t>(entries.size())}, at::TensorOptions(at::kCPU).dtype(at::kLong));
  for (const auto& share : shares_of(entries)) {
    const auto digests = core::digests_of(share.tensors).cpu();
    for (std::size_t i = 0; i < share.places.size(); ++i) {
      all.mutable_data_ptr<std::int64_t>()[share.places[i]] = digests.const_data_ptr<std::int64_t>()[i];
    }
  }
  return all.to(where);
}

at::Tensor row_on(c10::Device where, const Entries& entries) {
  const c10::NoGradGuard no_grad;
  const auto row = at::empty({kRow}, at::TensorOptions(where).dtype(at::kLong));
  std::int64_t on_host = 0;
  std::vector<at::Tensor> on_devices;
  for (const auto& share : shares_of(entries)) {
    if (share.device.is_cpu()) {
      on_host = digest_on_host(share);
    } else {
      on_devices.push_back(core::moved(core::digests_of(share.tensors), where));
    }
  }
  row[0].fill_(structure_of(entries));
  row[1].fill_(on_host);
  if (on_devices.empty()) {
    row[2].zero_();
  } else {
    row.narrow(0, 2, 1).copy_(core::digests_of({at::cat(on_devices)}));
  }
  return row;
}

std::uint64_t digest_of(const Entries& entries) {
  return core::digest(digests_on(at::kCPU, entries));
}

std::string description(const Entry& entry) {
  return core::str(to_string(entry.kind), " ", entry.name, ", ", c10::toString(entry.tensor.scalar_type()), " ",
                   entry.tensor.sizes());
}

}  // namespace lockstep::replica
