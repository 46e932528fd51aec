// SPDX-License-Identifier: Apache-2.0
#include "amp/model_cast.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/rnn.h>

#include <unordered_set>

#include "amp/low_precision.h"
#include "core/check.h"
#include "lockstep/nn/batch_norm.h"

namespace lockstep::amp {
namespace {

using core::check;
using core::Problem;
using core::str;

constexpr const char* kCast = "amp.initialize";
constexpr const char* kOrder =
    "build the model, move it to its device, build the optimizer, initialize, then wrap in DistributedDataParallel";
// The name of a leaf in autograd, otherwise unused in C++: it says that a living Amp has this parameter.
constexpr const char* kMark = "lockstep.amp";

bool is_batchnorm(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr ||
         dynamic_cast<const nn::SyncBatchNormImpl*>(&module) != nullptr ||
         module.named_buffers(/*recurse=*/false).contains("running_mean");
}

// cuDNN wants the weights of a recurrent module in one piece.
void flatten_recurrent(torch::nn::Module& module) {
  const auto flatten = [](auto* recurrent) {
    if (recurrent != nullptr) {
      recurrent->flatten_parameters();
    }
  };
  flatten(dynamic_cast<torch::nn::LSTMImpl*>(&module));
  flatten(dynamic_cast<torch::nn::GRUImpl*>(&module));
  flatten(dynamic_cast<torch::nn::RNNImpl*>(&module));
}

void cast_tensor(at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == dtype) {
    return;
  }
  const auto gradient = tensor.grad();
  tensor.set_data(tensor.detach().to(dtype));
  if (gradient.defined()) {
    tensor.mutable_grad() = gradient.to(dtype);
  }
}

void check_tensor(const std::string& name, const at::Tensor& tensor, c10::DeviceType device_type) {
  if (!tensor.defined() || !tensor.is_floating_point()) {
    return;
  }
  check(!low_precision(tensor), kCast, [&] {
    return Problem{str("parameter or buffer '", name, "' is not in fp32"), str(tensor.scalar_type()), "Float",
                   "leave all casts to initialize, and call it once"};
  });
  check(tensor.device().type() == device_type, kCast, [&] {
    return Problem{str("'", name, "' is on another kind of device than the rest"), str(tensor.device()),
                   str(device_type), kOrder};
  });
}

void check_parameter(const std::string& name, const at::Tensor& parameter) {
  const bool hooked = torch::autograd::impl::get_autograd_meta(parameter) != nullptr &&
                      torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr;
  check(!hooked, kCast, [&] {
    return Problem{str("parameter '", name, "' has a gradient hook: the model is wrapped already"),
                   "initialize after the wrapper", "initialize first, then wrap", kOrder};
  });
  check(parameter.name() != kMark, kCast, [&] {
    return Problem{str("parameter '", name, "' is initialised already"), "initialize for the second time",
                   "one call for all models and optimizers that share tensors"};
  });
}

std::string prefix(std::size_t model, std::size_t models) {
  return models > 1 ? str(model, ".") : "";
}

}  // namespace

ModelSet::ModelSet(const Models& models) {
  check(!models.empty(), kCast, [] { return Problem{.what = "no model was given"}; });
  for (std::size_t i = 0; i < models.size(); ++i) {
    auto& model = models[i].get();
    models_.push_back(&model);
    alive_.push_back(model.weak_from_this().lock());
    for (const auto& item : model.named_parameters()) {
      names_.emplace(item.value().unsafeGetTensorImpl(), prefix(i, models.size()) + item.key());
    }
  }
}

ModelSet::~ModelSet() {
  for (const auto& parameter : marked_) {
    torch::autograd::impl::set_name(parameter, "");
  }
}

c10::DeviceType ModelSet::device_type() const {
  for (const auto* model : models_) {
    for (const auto& tensor : model->parameters()) {
      return tensor.device().type();
    }
    for (const auto& tensor : model->buffers()) {
      return tensor.device().type();
    }
  }
  return c10::kCPU;
}

void ModelSet::check_fresh() const {
  const auto type = device_type();
  for (std::size_t i = 0; i < models_.size(); ++i) {
    for (const auto& item : models_[i]->named_parameters()) {
      check_parameter(prefix(i, models_.size()) + item.key(), item.value());
      check_tensor(prefix(i, models_.size()) + item.key(), item.value(), type);
    }
    for (const auto& item : models_[i]->named_buffers()) {
      check_tensor(prefix(i, models_.size()) + item.key(), item.value(), type);
    }
  }
}

void ModelSet::cast(at::ScalarType dtype, bool keep_batchnorm,
                    const std::function<bool(const torch::nn::Module&)>& keep_fp32) {
  const at::NoGradGuard no_grad;
  for (auto* model : models_) {
    model->apply([&](torch::nn::Module& module) {
      if (keep_batchnorm && (is_batchnorm(module) || (keep_fp32 && keep_fp32(module)))) {
        return;
      }
      for (auto& parameter : module.parameters(/*recurse=*/false)) {
        cast_tensor(parameter, dtype);
      }
      for (auto& buffer : module.buffers(/*recurse=*/false)) {
        cast_tensor(buffer, dtype);
      }
      flatten_recurrent(module);
    });
  }
}

void ModelSet::settle() {
  settled_ = look();
  for (const auto& parameter : parameters()) {
    if (parameter.parameter.name().empty()) {
      torch::autograd::impl::set_name(parameter.parameter, kMark);
      marked_.push_back(parameter.parameter);
    }
  }
}

std::vector<ModelSet::Seen> ModelSet::look() const {
  std::vector<Seen> seen;
  seen.reserve(settled_.size());
  for (const auto* model : models_) {
    for (const auto& parameter : model->parameters()) {
      seen.push_back({parameter.unsafeGetTensorImpl(), parameter.scalar_type(), parameter.device()});
    }
  }
  return seen;
}

void ModelSet::check_unchanged(const char* where) const {
  const auto now = look();
  if (now != settled_) [[unlikely]] {
    report_change(where, now);
  }
}

void ModelSet::report_change(const char* where, const std::vector<Seen>& now) const {
  std::vector<std::string> names;
  for (const auto* model : models_) {
    for (const auto& item : model->named_parameters()) {
      names.push_back(item.key());
    }
  }
  constexpr const char* advice =
      "change models before initialize: optimizers, masters and hooks refer to what was there";
  for (std::size_t i = 0; i < std::min(now.size(), settled_.size()); ++i) {
    const auto &old = settled_[i], &seen = now[i];
    if (old.tensor != seen.tensor) {
      core::fail(where,
                 {str("parameter '", names[i], "' was replaced by another tensor after initialize"), "", "", advice});
    }
    if (old.dtype != seen.dtype || old.device != seen.device) {
      core::fail(where, {str("parameter '", names[i], "' was cast or moved after initialize"),
                         str(seen.dtype, " on ", seen.device), str(old.dtype, " on ", old.device), advice});
    }
  }
  core::fail(where,
             {"parameters were added or removed after initialize", str(now.size()), str(settled_.size()), advice});
}

std::vector<NamedMaster> ModelSet::parameters() const {
  std::vector<NamedMaster> list;
  std::unordered_set<const void*> listed;
  for (const auto* model : models_) {
    for (const auto& parameter : model->parameters()) {
      if (listed.insert(parameter.unsafeGetTensorImpl()).second) {
        list.push_back({names_.at(parameter.unsafeGetTensorImpl()), at::Tensor(), parameter});
      }
    }
  }
  return list;
}

const std::string* ModelSet::name_of(const at::Tensor& parameter) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  return found == names_.end() ? nullptr : &found->second;
}

}  // namespace lockstep::amp
