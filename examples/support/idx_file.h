// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace examples {

/// Reads a file of the idx format (http://yann.lecun.com/exdb/mnist), gzipped or plain, as a uint8 tensor of the sizes
/// its header states. Throws lockstep::InputError where the file is missing, is no idx file of unsigned bytes with
/// `dimensions` dimensions, or holds less or more data than the header says.
at::Tensor read_idx(const std::filesystem::path& path, int dimensions);

}  // namespace examples
