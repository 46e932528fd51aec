// SPDX-License-Identifier: Apache-2.0
// Two checkpoints, piece by piece and bit by bit.
#pragma once

#include <string>
#include <vector>

#include "lockstep/inspect_archive.h"

namespace lockstep::inspect {

struct Comparison {
  /// A line for each piece that differs: its path, the first element that does, both values.
  std::vector<std::string> differences;
  std::size_t pieces = 0;  // tensors and values compared

  bool equal() const { return differences.empty(); }
};

Comparison compare(const std::vector<Item>& reference, const std::vector<Item>& other);

/// Of two files: as archives where both are, else byte by byte.
Comparison compare_files(const std::string& reference, const std::string& other);

/// Files that belong together: of two files these, of two folders those of the same name (the second name is empty, or
/// the first, where the other folder has no such file), of a file and a folder the file with each of the folder's.
/// Throws InputError where something does not exist.
std::vector<std::pair<std::string, std::string>> pairs_of(const std::string& reference, const std::string& other);

}  // namespace lockstep::inspect
