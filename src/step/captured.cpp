// SPDX-License-Identifier: Apache-2.0
#include "step/captured.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace lockstep::step {
namespace {

bool fits(const at::Tensor& recorded, const at::Tensor& given) {
  return recorded.sizes() == given.sizes() && recorded.scalar_type() == given.scalar_type();
}

/// Those that there are, in order, as one fp32 tensor.
at::Tensor joined(const Outputs& outputs) {
  std::vector<at::Tensor> values;
  for (const auto* value : {&outputs.loss, &outputs.found_inf, &outputs.norm}) {
    if (value->defined()) {
      values.push_back(value->reshape({1}).to(at::kFloat));
    }
  }
  return values.size() == 1 ? values.front() : at::cat(values);
}

/// The next of `results` in the place of what was recorded, if there was something.
at::Tensor taken(const at::Tensor& results, const at::Tensor& recorded, std::int64_t& next) {
  return recorded.defined() ? results[next++] : at::Tensor();
}

}  // namespace

const Captured::Shape* Captured::find(const Inputs& inputs) const {
  const auto found = std::find_if(shapes_.begin(), shapes_.end(), [&](const auto& shape) {
    return std::equal(shape->inputs.begin(), shape->inputs.end(), inputs.begin(), inputs.end(), fits);
  });
  return found == shapes_.end() ? nullptr : found->get();
}

void Captured::record(const Inputs& inputs, const Body& body, const std::vector<at::Tensor>& parameters) {
  auto shape = std::make_unique<Shape>();
  recorder_->run([&] {
    for (const auto& input : inputs) {
      shape->inputs.push_back(input.to(parameters.front().device()).clone());
    }
  });
  if (accumulate_ > 1) {
    record_place(*shape, Place::First, body);
    for (const auto& parameter : parameters) {
      shape->gradients.push_back(parameter.grad());
    }
  }
  if (accumulate_ > 2) {
    record_place(*shape, Place::Inner, body);
  }
  record_place(*shape, Place::Last, body);
  shapes_.push_back(std::move(shape));
}

void Captured::record_place(Shape& shape, Place place, const Body& body) {
  auto& step = shape.steps[static_cast<std::size_t>(place)];
  step.recording = recorder_->record([&] {
    const auto outputs = body(shape.inputs, place);
    const at::NoGradGuard no_grad;
    step.results = joined(outputs);
    step.kinds = outputs;
  });
}

Outputs Captured::replay(const Inputs& inputs, Place place) {
  const auto& shape = *find(inputs);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor target = shape.inputs[i];
    target.copy_(inputs[i], /*non_blocking=*/true);
  }
  const auto& step = shape.steps[static_cast<std::size_t>(place)];
  step.recording->replay();
  const auto results = step.results.clone();  // the next replay writes over what this one gave
  const auto& kinds = step.kinds;
  std::int64_t next = 0;
  const auto loss = taken(results, kinds.loss, next).to(kinds.loss.scalar_type());
  const auto found_inf = taken(results, kinds.found_inf, next);
  return {loss, found_inf, taken(results, kinds.norm, next)};
}

void Captured::show_gradients(const Inputs& inputs, const std::vector<at::Tensor>& parameters) const {
  const auto* shape = find(inputs);
  for (std::size_t i = 0; shape != nullptr && i < shape->gradients.size(); ++i) {
    parameters[i].mutable_grad() = shape->gradients[i];
  }
}

}  // namespace lockstep::step
