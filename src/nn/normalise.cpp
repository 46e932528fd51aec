// SPDX-License-Identifier: Apache-2.0
#include "nn/normalise.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/check.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor given(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

struct Group : torch::CustomClassHolder {
  Group(World w, CallLabel l) : world(std::move(w)), label(std::move(l)) {}
  World world;
  CallLabel label;
};

void check_first_derivative(const CallLabel& label) {
  core::check(!at::GradMode::is_enabled(), "nn.SyncBatchNorm", [&] {
    return core::Problem{.what = core::str("'", label.name, "' has no second derivative"),
                         .got = "backward with create_graph",
                         .expected = "create_graph = false",
                         .advice = "use another normalisation where gradients are differentiated"};
  });
}

struct Normalise : torch::autograd::Function<Normalise> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const OptionalTensor& given_weight,
                            const OptionalTensor& given_bias, const SharedStatistics& statistics, double eps,
                            const World& world, const CallLabel& label) {
    const PlainMath plain;
    const auto weight = given_weight.value_or(at::Tensor()), bias = given_bias.value_or(at::Tensor());
    const auto& [mean, var] = statistics.moments;
    context->save_for_backward({input, weight, mean, statistics.invstd, statistics.counts});
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<Group>(world, label));
    return normalised(laid_out(input, input), weight, bias, statistics.moments, statistics.invstd, eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto group = c10::static_intrusive_pointer_cast<Group>(context->saved_data["group"].toCapsule());
    check_first_derivative(group->label);
    const PlainMath plain;
    const auto saved = context->get_saved_variables();
    const auto &weight = saved[1], &mean = saved[2], &invstd = saved[3];
    const auto input = laid_out(saved[0], saved[0]);
    const auto gradient = laid_out(gradients[0].to(input.scalar_type()), input);

    const auto own = gradient_sums(gradient, input, weight, mean, invstd);
    variable_list result(7);
    if (weight.defined()) {
      result[1] = own.weight.to(weight.scalar_type());
      result[2] = own.bias.to(weight.scalar_type());
    }
    if (context->needs_input_grad(0)) {
      group->world.all_reduce(own.sums, ReduceOp::Sum, group->label).wait();
      result[0] = input_gradient(gradient, input, weight, mean, invstd, own.sums, saved[4]);
    }
    return result;
  }
};

}  // namespace

at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const SharedStatistics& statistics, double eps, const World& world, const CallLabel& label) {
  return Normalise::apply(input, given(weight), given(bias), statistics, eps, world, label);
}

}  // namespace lockstep::nn
