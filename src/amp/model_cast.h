// SPDX-License-Identifier: Apache-2.0
// The models of an Amp: their parameters by name, the cast to a dtype, and the watch over later changes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/amp/opt_level.h"

namespace lockstep::amp {

class ModelSet {
 public:
  /// Keeps models that are held by shared pointers alive; refers to others.
  explicit ModelSet(const Models& models);
  ~ModelSet();
  ModelSet(const ModelSet&) = delete;
  ModelSet& operator=(const ModelSet&) = delete;

  /// Throws InputError where a model cannot be initialised: wrapped or initialised already, low precision tensors in
  /// it, tensors on several kinds of devices.
  void check_fresh() const;

  /// CUDA or CPU, that of the first tensor; CPU for a model without tensors.
  c10::DeviceType device_type() const;

  /// Casts floating parameters and buffers, and gradients there are, in place: each tensor stays the object that
  /// optimizers and hooks know. Modules that `keep_batchnorm` and `keep_fp32` name stay as they are.
  void cast(at::ScalarType dtype, bool keep_batchnorm, const std::function<bool(const torch::nn::Module&)>& keep_fp32);

  /// Ends the preparation: notes what the parameters are now, for `check_unchanged`, and marks them.
  void settle();

  /// Throws InputError, naming the parameter, where one was replaced, cast or moved since `settle`.
  void check_unchanged(const char* where) const;

  /// Parameters in the model's order; tied ones once, by their first name.
  std::vector<NamedMaster> parameters() const;
  /// The name of a parameter; none where it is not one of the models'.
  const std::string* name_of(const at::Tensor& parameter) const;

 private:
  struct Seen {
    const void* tensor;
    at::ScalarType dtype;
    c10::Device device;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> look() const;
  [[noreturn]] void report_change(const char* where, const std::vector<Seen>& now) const;

  std::vector<torch::nn::Module*> models_;
  std::vector<std::shared_ptr<torch::nn::Module>> alive_;
  std::unordered_map<const void*, std::string> names_;
  std::vector<Seen> settled_;
  std::vector<at::Tensor> marked_;
};

}  // namespace lockstep::amp
