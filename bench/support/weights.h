// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace torch::nn {
class Module;
}

namespace lockstep::bench {

/// Tensors by name from a safetensors file (fp32 and int64), on the CPU.
std::map<std::string, at::Tensor> read_weights(const std::string& path);

/// Copies them to the parameters and buffers of `model`. Throws where names or shapes differ, either way.
void load_weights(torch::nn::Module& model, const std::map<std::string, at::Tensor>& weights);

}  // namespace lockstep::bench
