// SPDX-License-Identifier: Apache-2.0
#include "support/weights.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace lockstep::bench {
namespace {

at::ScalarType dtype_of(const std::string& name) {
  if (name == "F32") {
    return at::kFloat;
  }
  if (name == "I64") {
    return at::kLong;
  }
  throw std::runtime_error("weights of dtype " + name + " are not expected");
}

void copy_to(const at::Tensor& to, const at::Tensor& from, const std::string& name) {
  if (to.sizes() != from.sizes()) {
    throw std::runtime_error(c10::str(name, ": the model has ", to.sizes(), ", the file ", from.sizes()));
  }
  to.copy_(from);
}

}  // namespace

std::map<std::string, at::Tensor> read_weights(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.exceptions(std::ios::failbit | std::ios::badbit);
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string text(length, ' ');
  file.read(text.data(), static_cast<std::streamsize>(length));
  const auto begin = file.tellg();
  std::map<std::string, at::Tensor> tensors;
  const auto header = nlohmann::json::parse(text);
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
      auto tensor = at::empty(shape, at::TensorOptions(dtype_of(entry.at("dtype"))));
      file.seekg(begin + static_cast<std::streamoff>(entry.at("data_offsets").at(0).get<std::int64_t>()));
      file.read(static_cast<char*>(tensor.mutable_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
      tensors.emplace(name, tensor);
    }
  }
  return tensors;
}

void load_weights(torch::nn::Module& model, const std::map<std::string, at::Tensor>& weights) {
  const at::NoGradGuard no_grad;
  auto own = model.named_parameters();
  for (const auto& buffer : model.named_buffers()) {
    own.insert(buffer.key(), buffer.value());
  }
  if (own.size() != weights.size()) {
    throw std::runtime_error(c10::str("the model has ", own.size(), " tensors, the file ", weights.size()));
  }
  for (const auto& tensor : own) {
    copy_to(tensor.value(), weights.at(tensor.key()), tensor.key());
  }
}

}  // namespace lockstep::bench
