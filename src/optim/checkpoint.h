// SPDX-License-Identifier: Apache-2.0
// What Lockstep adds to, and asks of, a torch::optim checkpoint.
#pragma once

#include <torch/serialize/archive.h>

#include "optim/engine.h"

namespace lockstep::optim {

/// Writes the class's name and the own masters beside what torch writes. torch::optim classes ignore them.
void save_extras(torch::serialize::OutputArchive& archive, const Engine& engine);

/// Own masters in the file, by place; empty if it has none.
std::vector<at::Tensor> load_masters(torch::serialize::InputArchive& archive, std::size_t count);

/// Throws InputError if the file was written by another class of optimizer.
void check_class(torch::serialize::InputArchive& archive, const Schema& schema);

/// Throws InputError if a loaded state does not have its parameter's shape.
void check_loaded(torch::optim::Optimizer& loaded, const Schema& schema);

}  // namespace lockstep::optim
