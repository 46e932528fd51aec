// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/check.h"
#include "nn/fused.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::nn::CrossEntropyLossOptions;

/// A loss for each row; how they are joined is left to the caller.
class RowLosses : public torch::autograd::Function<RowLosses> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets,
                            std::int64_t ignore_index, double smoothing) {
    const auto losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
    const auto log_sums = at::empty_like(losses);
    row_losses_on_cuda(logits, targets, {ignore_index, static_cast<float>(smoothing)}, losses, log_sums);
    context->save_for_backward({logits, targets, log_sums});
    context->saved_data["ignore_index"] = ignore_index;
    context->saved_data["smoothing"] = smoothing;
    return losses;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    core::check(!at::GradMode::is_enabled(), "nn.cross_entropy", [] {
      return core::Problem{.what = "the gradient was asked for with a graph of its own (create_graph)",
                           .advice = "for second derivatives use torch::nn::CrossEntropyLoss"};
    });
    const auto saved = context->get_saved_variables();
    const LossOptions options{context->saved_data["ignore_index"].toInt(),
                              static_cast<float>(context->saved_data["smoothing"].toDouble())};
    const auto output = at::empty_like(saved[0]);
    row_gradients_on_cuda(saved[0], saved[1], options, saved[2], gradients[0].contiguous(), output);
    return {output, {}, {}, {}};
  }
};

bool fits(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyLossOptions& options) {
  const auto dtype = logits.scalar_type();
  return logits.is_cuda() && targets.device() == logits.device() && logits.dim() == 2 && targets.dim() == 1 &&
         logits.size(0) == targets.size(0) && targets.scalar_type() == at::kLong && !options.weight().defined() &&
         (dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat);
}

at::Tensor joined(const at::Tensor& losses, const at::Tensor& targets, const CrossEntropyLossOptions& options) {
  if (std::holds_alternative<torch::enumtype::kNone>(options.reduction())) {
    return losses;
  }
  const auto sum = losses.sum();
  return std::holds_alternative<torch::enumtype::kSum>(options.reduction())
             ? sum
             : sum / targets.ne(options.ignore_index()).sum();
}

std::int64_t reduction_of(const CrossEntropyLossOptions& options) {
  if (std::holds_alternative<torch::enumtype::kNone>(options.reduction())) {
    return at::Reduction::None;
  }
  return std::holds_alternative<torch::enumtype::kSum>(options.reduction()) ? at::Reduction::Sum : at::Reduction::Mean;
}

at::Tensor widened(const at::Tensor& tensor) {
  const bool narrow = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  return narrow ? tensor.to(at::kFloat) : tensor;
}

/// LibTorch's loss of the widened logits.
at::Tensor stock(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyLossOptions& options) {
  const auto wide = widened(logits);
  const auto targets_alike = targets.is_floating_point() ? targets.to(wide.scalar_type()) : targets;
  const auto weight = options.weight().defined() ? options.weight().to(wide.scalar_type()) : at::Tensor();
  return at::cross_entropy_loss(wide, targets_alike, weight, reduction_of(options), options.ignore_index(),
                                options.label_smoothing());
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyLossOptions& options) {
  if (!fits(logits, targets, options)) {
    return stock(logits, targets, options);
  }
  const auto losses =
      RowLosses::apply(logits.contiguous(), targets.contiguous(), options.ignore_index(), options.label_smoothing());
  return joined(losses, targets, options);
}

at::Tensor CrossEntropyLossImpl::forward(const at::Tensor& input, const at::Tensor& target) {
  auto with_weight = options;
  with_weight.weight(weight);
  return cross_entropy(input, target, with_weight);
}

}  // namespace lockstep::nn
