// SPDX-License-Identifier: Apache-2.0
// From a rank's state to the few numbers that ranks exchange.
#pragma once

#include "replica/entry.h"

namespace lockstep::replica {

/// One digest an entry: an int64 tensor on `where`, in the entries' order. Waits for a device only where an entry lies
/// on another one than `where` and the CPU.
at::Tensor digests_on(c10::Device where, const Entries& entries);

/// Everything in three int64 numbers on `where`: the structure (kinds, names, dtypes, sizes), the entries on the CPU,
/// and the others. Two ranks' rows are equal where their states are. Waits for no device.
at::Tensor row_on(c10::Device where, const Entries& entries);

/// The same as one number. Waits.
std::uint64_t digest_of(const Entries& entries);

/// A line that says what an entry is, without its value.
std::string description(const Entry& entry);

}  // namespace lockstep::replica
