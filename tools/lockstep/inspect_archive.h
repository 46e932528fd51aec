// SPDX-License-Identifier: Apache-2.0
// What is in a checkpoint, as a flat list.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace lockstep::inspect {

/// A tensor, or any other value as text.
struct Item {
  std::string path;
  at::Tensor tensor;
  std::string text = {};
};

/// True for zip files, which is what torch::save, TorchScript and Python's torch.save write.
bool is_archive(const std::string& file);

/// Everything in the archive, by path, on the CPU. The states of an optimizer, which the file keeps under memory
/// addresses, are listed by group and place instead. Throws InputError for a file that cannot be read.
std::vector<Item> items_of(const std::string& file);

}  // namespace lockstep::inspect
