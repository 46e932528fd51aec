// SPDX-License-Identifier: Apache-2.0
#include "ddp/usage.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace lockstep::ddp {

void Usage::share(const World& world, c10::Device device, std::uint32_t tag) {
  auto flags = at::zeros({static_cast<std::int64_t>(here_.size())}, at::kInt);
  std::copy(here_.begin(), here_.end(), flags.mutable_data_ptr<int>());
  const auto shared = flags.to(device);
  world.all_reduce(shared, ReduceOp::Max, {"parameter usage", tag}).wait();
  flags = shared.cpu();
  const auto* values = flags.const_data_ptr<int>();
  std::transform(values, values + here_.size(), anywhere_.begin(), [](int value) { return value != 0; });
}

core::Problem unused_problem(const std::vector<std::string>& names, const std::string& where) {
  constexpr std::size_t kMostNames = 8;
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    list += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMostNames) {
    list += core::str(" and ", names.size() - kMostNames, " more");
  }
  return {core::str("no gradient for parameters of ", where, ": ", list), "", "",
          "let every parameter take part in the loss, freeze it before wrapping, or set unused = Detect"};
}

}  // namespace lockstep::ddp
