// SPDX-License-Identifier: Apache-2.0
#include "step/window.h"

#include <ATen/ATen.h>

namespace lockstep::step {

Window::Window(const TrainStepOptions& options, const World& world, c10::Device device)
    : options_(options), world_(world), device_(device) {
  weight_ = at::full({}, 1.0 / static_cast<double>(options_.accumulate), at::TensorOptions(device).dtype(at::kDouble));
  narrow_weight_ = weight_.to(at::kFloat);
  if (options_.weigh_by_count) {
    count_ = at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
    total_ = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  }
}

void Window::set_count(double count) {
  if (options_.weigh_by_count) {
    count_.fill_(count);
  }
}

at::Tensor Window::weight(const at::Tensor& loss) {
  if (!options_.weigh_by_count) {
    return loss.scalar_type() == at::kDouble ? weight_ : narrow_weight_;
  }
  total_.add_(count_);
  return count_ / (options_.typical_count * static_cast<double>(options_.accumulate));
}

at::Tensor Window::multiplier() {
  if (options_.weigh_by_count) {
    if (world_.size() > 1) {
      world_.all_reduce(total_, ReduceOp::Sum, {.name = "counts of the window"}).wait();
    }
    const auto weighed = options_.typical_count * static_cast<double>(options_.accumulate) * world_.size();
    return at::where(total_.gt(0), weighed / total_, at::zeros_like(total_)).to(at::kFloat);
  }
  if (length_ == options_.accumulate) {
    return {};
  }
  return at::full({}, static_cast<double>(options_.accumulate) / static_cast<double>(length_),
                  at::TensorOptions(device_).dtype(at::kFloat));
}

void Window::restart() {
  length_ = 0;
  if (total_.defined()) {
    total_.zero_();
  }
}

}  // namespace lockstep::step
