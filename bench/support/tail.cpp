// SPDX-License-Identifier: Apache-2.0
// What comes after backward, alone: norm, clipping, AdamW over fp16 weights with fp32 masters.
#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip_grad.h"
#include "support/workload.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kTensors = 148;

class Tail : public Workload {
 public:
  explicit Tail(const Case& wanted)
      : size_(wanted.batch / kTensors / 64 * 64),
        options_(c10::Device(wanted.device)),
        parameters_(arena()),
        optimizer_(parameters_, torch::optim::AdamWOptions(1e-4), {.master_weights = true}),
        scale_(at::full({1}, 65536, options_.dtype(at::kFloat))) {}

  at::Tensor step() override {
    const auto clip = optim::clip_factor(parameters_, 1.0, {.grad_scale = scale_});
    optimizer_.step_fused({.grad_scale = scale_, .found_inf = clip.found_inf, .clip_factor = clip.factor});
    return clip.norm;
  }

  c10::Device device() const override { return parameters_.front().device(); }

  nlohmann::json describe() const override {
    return {{"parameters", kTensors * size_}, {"what", "float16 parameters, fp32 masters; norm + clip + AdamW"}};
  }

 private:
  std::vector<at::Tensor> arena() const {
    const auto half = options_.dtype(at::kHalf);
    const auto weights = at::randn({kTensors * size_}, half).mul_(0.02);
    const auto gradients = at::randn({kTensors * size_}, half);
    std::vector<at::Tensor> tensors;
    for (std::int64_t i = 0; i < kTensors; ++i) {
      tensors.push_back(weights.narrow(0, i * size_, size_).detach().requires_grad_());
      tensors.back().mutable_grad() = gradients.narrow(0, i * size_, size_);
    }
    return tensors;
  }

  std::int64_t size_;
  at::TensorOptions options_;
  std::vector<at::Tensor> parameters_;
  optim::AdamW optimizer_;
  at::Tensor scale_;
};

}  // namespace

std::unique_ptr<Workload> make_tail(const Case& wanted) {
  return std::make_unique<Tail>(wanted);
}

}  // namespace lockstep::bench
