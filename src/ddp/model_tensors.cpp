// SPDX-License-Identifier: Apache-2.0
#include "ddp/model_tensors.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <algorithm>
#include <unordered_set>

#include "core/check.h"
#include "lockstep/ddp/join.h"

namespace lockstep::ddp {
namespace {

std::vector<NamedTensor> unique_tensors(const std::vector<NamedTensor>& all, const std::vector<std::string>& ignore) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<NamedTensor> kept;
  for (const auto& entry : all) {
    const bool ignored = std::find(ignore.begin(), ignore.end(), entry.name) != ignore.end();
    if (entry.tensor.defined() && !ignored && seen.insert(entry.tensor.unsafeGetTensorImpl()).second) {
      kept.push_back(entry);
    }
  }
  return kept;
}

/// Grants access to what a module has registered, without the copy that its accessors make.
struct Registry : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) { return module.*(&Registry::parameters_); }
};

void collect_identities(const torch::nn::Module& module, std::vector<const void*>& identities) {
  for (const auto& item : Registry::of(module)) {
    identities.push_back(item.value().unsafeGetTensorImpl());
  }
  for (const auto& child : module.children()) {
    collect_identities(*child, identities);
  }
}

bool has_name(const std::vector<NamedTensor>& tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name == name; });
}

}  // namespace

ModelTensors tensors_of(const torch::nn::Module& module) {
  ModelTensors tensors;
  for (const auto& item : module.named_parameters()) {
    tensors.parameters.push_back({item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers()) {
    tensors.buffers.push_back({item.key(), item.value()});
  }
  return tensors;
}

ModelTensors tensors_of(const torch::nn::AnyModule& module) {
  return tensors_of(*module.ptr());
}

std::vector<const void*> identities_of(const torch::nn::Module& module) {
  std::vector<const void*> identities;
  collect_identities(module, identities);
  return identities;
}

ModelTensors tensors_of(const torch::jit::Module& module) {
  ModelTensors tensors;
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    tensors.parameters.push_back({item.name, item.value});
  }
  for (const auto& item : module.named_buffers(/*recurse=*/true)) {
    tensors.buffers.push_back({item.name, item.value});
  }
  return tensors;
}

std::vector<std::string> forward_collectives(const torch::nn::Module& module) {
  std::vector<std::string> names;
  const auto look = [&](const std::string& name, const torch::nn::Module& at) {
    const auto* collective = dynamic_cast<const ForwardCollective*>(&at);
    if (collective != nullptr && collective->communicates_in_forward()) {
      names.push_back(name);
    }
  };
  look(module.name(), module);
  // Without the module itself, which need not be held by a shared pointer.
  for (const auto& item : module.named_modules({}, /*include_self=*/false)) {
    look(item.key(), *item.value());
  }
  return names;
}

std::vector<std::string> forward_collectives(const torch::nn::AnyModule& module) {
  return forward_collectives(*module.ptr());
}

std::vector<std::string> forward_collectives(const torch::jit::Module& /*module*/) {
  return {};
}

ModelTensors participating(const ModelTensors& all, const std::vector<std::string>& ignore) {
  for (const auto& name : ignore) {
    core::check(has_name(all.parameters, name) || has_name(all.buffers, name), "ddp.construct", [&] {
      return core::Problem{"a name to ignore belongs to no parameter or buffer", core::str("'", name, "'")};
    });
  }
  return {unique_tensors(all.parameters, ignore), unique_tensors(all.buffers, ignore)};
}

std::vector<NamedTensor> trainable(const std::vector<NamedTensor>& parameters) {
  std::vector<NamedTensor> kept;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(kept),
               [](const NamedTensor& p) { return p.tensor.requires_grad(); });
  return kept;
}

core::TensorSpec spec_of(const NamedTensor& named) {
  const auto& t = named.tensor;
  return {named.name, t.sizes().vec(), t.strides().vec(), t.scalar_type(), t.device()};
}

}  // namespace lockstep::ddp
