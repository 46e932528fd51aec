// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::bench {

/// What is measured, as the command line names it.
struct Case {
  std::string workload = "mlp";
  std::int64_t batch = 16;
  std::int64_t accumulate = 1;
  std::string mode = "eager";
  std::string device = "cuda";
  std::string weights = {};
  int profile = 0;  // steps
};

class Workload {
 public:
  virtual ~Workload() = default;
  /// One optimizer step; returns the loss, one element, without waiting for the device.
  virtual at::Tensor step() = 0;
  virtual c10::Device device() const = 0;
  /// What runs, and what was checked before it runs.
  virtual nlohmann::json describe() const = 0;
};

/// mlp, linear, small, gpt2, resnet50: one rank of the world that the environment describes.
std::unique_ptr<Workload> make_training(const Case& wanted);
/// What comes after backward, alone; `batch` is the number of parameters.
std::unique_ptr<Workload> make_tail(const Case& wanted);

}  // namespace lockstep::bench
