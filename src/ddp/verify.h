// SPDX-License-Identifier: Apache-2.0
// Before any data moves: do all ranks hold the same model?
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/ddp/data_parallel.h"

namespace lockstep::ddp {

/// Collective: each rank's `text`, on every rank. Where a rank has a `problem` (an error's text), every rank throws the
/// same InputError, with the first such rank's.
std::vector<std::string> gather_or_throw(const World& world, const std::string& text, const std::string& problem,
                                         const std::string& label);

/// Collective. `local_error` is what this rank found wrong with its own model (empty: nothing). Every rank throws the
/// same InputError where a rank has such an error or where descriptions differ; the first difference to rank 0 is
/// named.
void verify_across_ranks(const World& world, const ModelTensors& tensors, const std::string& local_error);

}  // namespace lockstep::ddp
