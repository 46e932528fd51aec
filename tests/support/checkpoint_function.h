// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing as users write it in C++: the forward runs without a graph, the backward runs it again and
// calls backward() inside the running one.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <functional>

namespace lockstep::test {

using Segment = std::function<at::Tensor(const at::Tensor&)>;

struct SegmentHolder : torch::CustomClassHolder {
  explicit SegmentHolder(Segment held) : segment(std::move(held)) {}
  Segment segment;
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, const Segment& segment,
                            const at::Tensor& /*keeps_the_graph_alive*/) {
    context->save_for_backward({input});
    context->saved_data["segment"] = c10::IValue::make_capsule(c10::make_intrusive<SegmentHolder>(segment));
    const c10::NoGradGuard no_grad;
    return segment(input);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto capsule = context->saved_data["segment"].toCapsule();
    const auto& segment = static_cast<const SegmentHolder&>(*capsule).segment;
    const c10::AutoGradMode enable(true);
    const auto input = context->get_saved_variables()[0].detach().requires_grad_();
    segment(input).backward(gradients[0]);
    return {input.grad(), {}, {}};
  }
};

inline at::Tensor checkpoint(const at::Tensor& input, const Segment& segment) {
  static thread_local const auto anchor = at::zeros({1}).requires_grad_();
  return Checkpoint::apply(input, segment, anchor.clone());
}

}  // namespace lockstep::test
