// SPDX-License-Identifier: Apache-2.0
// The meaning of `-n`: a number, or what the machine offers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::launcher {

/// How many of `present` GPUs a program sees under that CUDA_VISIBLE_DEVICES: the list counts up to its first entry
/// that names no device, as CUDA has it; all of them where the variable is unset.
int visible_gpus(int present, std::optional<std::string_view> visible_devices);

/// A whole number; `cpu`: processors this process may run on; `gpu`: visible GPUs, of which there must be one; `auto`:
/// GPUs if there are any, else processors. Throws InputError.
int count_ranks(const std::string& text, std::optional<std::string_view> visible_devices);

/// `text` as a whole number from `lowest` to `highest`. Throws InputError that names `flag`.
int parse_whole(std::string_view flag, const std::string& text, int lowest, int highest);

}  // namespace lockstep::launcher
