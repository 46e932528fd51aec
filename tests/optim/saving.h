// SPDX-License-Identifier: Apache-2.0
// Optimizers trained for a while, saved to memory and loaded from there.
#pragma once

#include <torch/serialize.h>

#include <sstream>
#include <string>

#include "optim/support.h"

namespace lockstep::test {

inline std::string file_of(const torch::optim::Optimizer& optimizer) {
  std::stringstream file;
  torch::save(optimizer, file);
  return file.str();
}

inline void load_from(const std::string& file, torch::optim::Optimizer& optimizer) {
  std::stringstream stream(file);
  torch::load(optimizer, stream);
}

inline void train(torch::optim::Optimizer& optimizer, int first, int last) {
  auto& parameters = optimizer.param_groups()[0].params();
  for (int step = first; step < last; ++step) {
    set_gradients(parameters, make_gradients(parameters, step));
    optimizer.step();
  }
}

}  // namespace lockstep::test
