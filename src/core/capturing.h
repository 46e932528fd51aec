// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::core {

/// True while this thread's current CUDA stream is being captured into a graph: nothing may wait for the device or read
/// it then. False in a build without CUDA.
bool capturing();

}  // namespace lockstep::core
