// SPDX-License-Identifier: Apache-2.0
// Which parameters had a gradient since the last reduced backward pass: on this rank, and, once shared, on any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/check.h"
#include "lockstep/comm/world.h"

namespace lockstep::ddp {

class Usage {
 public:
  explicit Usage(std::size_t parameters) : here_(parameters, false), anywhere_(parameters, false) {}

  void note(int index, bool used = true) { here_[static_cast<std::size_t>(index)] = used; }
  bool any() const { return std::find(here_.begin(), here_.end(), true) != here_.end(); }
  bool here(int index) const { return here_[static_cast<std::size_t>(index)]; }

  /// Collective. `device` is where the backend takes tensors.
  void share(const World& world, c10::Device device, std::uint32_t tag);
  /// As last shared.
  bool anywhere(int index) const { return anywhere_[static_cast<std::size_t>(index)]; }

  /// Starts anew, on this rank.
  void forget() { here_.assign(here_.size(), false); }

 private:
  std::vector<bool> here_;
  std::vector<bool> anywhere_;
};

/// What is wrong where parameters had no gradient and all must have one. `where`: rank and step.
core::Problem unused_problem(const std::vector<std::string>& names, const std::string& where);

}  // namespace lockstep::ddp
