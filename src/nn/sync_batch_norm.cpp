// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/batch_norm.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/batchnorm.h>

#include <functional>
#include <ostream>

#include "core/check.h"
#include "nn/normalise.h"
#include "nn/shared_statistics.h"

namespace lockstep::nn {
namespace {

using core::check;
using core::Problem;
using core::str;

constexpr const char* kWhere = "nn.SyncBatchNorm";

SyncBatchNormImpl::Tensors fresh(const SyncBatchNormOptions& options) {
  SyncBatchNormImpl::Tensors made;
  const auto size = options.num_features();
  if (options.affine()) {
    made.weight = at::ones({size}).requires_grad_();
    made.bias = at::zeros({size}).requires_grad_();
  }
  if (options.track_running_stats()) {
    made.running_mean = at::zeros({size});
    made.running_var = at::ones({size});
    made.num_batches_tracked = at::zeros({}, at::kLong);
  }
  return made;
}

}  // namespace

SyncBatchNormOptions::SyncBatchNormOptions(const torch::nn::BatchNormOptions& options)
    : num_features_(options.num_features()),
      eps_(options.eps()),
      momentum_(options.momentum()),
      affine_(options.affine()),
      track_running_stats_(options.track_running_stats()) {}

SyncBatchNormImpl::SyncBatchNormImpl(const SyncBatchNormOptions& options_, const World& world)
    : options(options_), world_(world), name_("SyncBatchNorm") {
  check(options.num_features() > 0, kWhere, [&] {
    return Problem{"the number of channels is not positive", str(options.num_features()), "1 or more"};
  });
  register_tensors(fresh(options));
}

SyncBatchNormImpl::SyncBatchNormImpl(const SyncBatchNormOptions& options_, const World& world, const Tensors& tensors)
    : options(options_), world_(world), name_("SyncBatchNorm") {
  register_tensors(tensors);
}

void SyncBatchNormImpl::reset() {
  register_tensors(fresh(options));
}

void SyncBatchNormImpl::register_tensors(const Tensors& tensors) {
  const auto parameter = [&](const char* name, const at::Tensor& tensor) {
    return register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  weight = parameter("weight", tensors.weight);
  bias = parameter("bias", tensors.bias);
  running_mean = register_buffer("running_mean", tensors.running_mean);
  running_var = register_buffer("running_var", tensors.running_var);
  num_batches_tracked = register_buffer("num_batches_tracked", tensors.num_batches_tracked);
}

void SyncBatchNormImpl::reset_running_stats() {
  if (options.track_running_stats()) {
    running_mean.zero_();
    running_var.fill_(1);
    num_batches_tracked.zero_();
  }
}

void SyncBatchNormImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  reset_running_stats();
  if (options.affine()) {
    weight.fill_(1);
    bias.zero_();
  }
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::nn::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats()
         << ", ranks=" << world_.size() << ')';
}

void SyncBatchNormImpl::set_world(const World& world, const std::string& name) {
  world_ = world;
  name_ = name.empty() ? "SyncBatchNorm" : name;
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check_input(input);
  return is_training() && world_.size() > 1 ? forward_together(input) : forward_alone(input);
}

void SyncBatchNormImpl::check_input(const at::Tensor& input) const {
  check(input.defined() && input.dim() >= 2 && input.size(1) == options.num_features(), kWhere, [&] {
    return Problem{str("the input of '", name_, "' does not fit"),
                   input.defined() ? str("sizes ", input.sizes()) : "an undefined tensor",
                   str("(N, ", options.num_features(), ", ...)")};
  });
  check(input.is_floating_point(), kWhere, [&] {
    return Problem{str("the input of '", name_, "' is not floating"), str(input.scalar_type()),
                   "fp32, fp16, bf16 or double"};
  });
  const auto& own = weight.defined() ? weight : running_mean;
  check(!own.defined() || own.device() == input.device(), kWhere, [&] {
    return Problem{str("the input of '", name_, "' is on another device than the module"), str(input.device()),
                   str(own.device())};
  });
}

at::Tensor SyncBatchNormImpl::plain(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& var,
                                    bool training, double factor) const {
  return torch::nn::functional::detail::batch_norm(input, mean, var, weight, bias, training, factor, options.eps());
}

// Without other ranks, torch's BatchNorm. In training it works on copies of the running statistics, kept if finite.
at::Tensor SyncBatchNormImpl::forward_alone(const at::Tensor& input) {
  const bool tracks = options.track_running_stats();
  check(!is_training() || values_per_channel(input) != 1, kWhere, [&] {
    return Problem{str("'", name_, "' has one value a channel"), str("sizes ", input.sizes()), "2 or more",
                   "a single value has no variance: use larger batches, or eval()"};
  });
  if (!is_training() || !tracks || input.numel() == 0) {
    return plain(input, running_mean, running_var, is_training() || !tracks, options.momentum().value_or(0));
  }
  const auto factor = options.momentum().value_or(1.0);
  const auto momentum = options.momentum() ? factor : 1.0 / (num_batches_tracked.item<double>() + 1);
  if (!options.skip_non_finite()) {
    num_batches_tracked += 1;
    return plain(input, running_mean, running_var, true, momentum);
  }
  const auto mean = running_mean.clone(), var = running_var.clone();
  auto output = plain(input, mean, var, true, momentum);
  const at::NoGradGuard no_grad;
  const auto good = finite(mean, var);
  running_mean.copy_(at::where(good.to(at::kBool), mean, running_mean));
  running_var.copy_(at::where(good.to(at::kBool), var, running_var));
  num_batches_tracked.add_(good);
  return output;
}

at::Tensor SyncBatchNormImpl::forward_together(const at::Tensor& input) {
  const auto tag = static_cast<std::uint32_t>(std::hash<std::string>()(name_)) & ~1u;
  const Running running{running_mean, running_var, num_batches_tracked, options.momentum(), options.skip_non_finite()};
  const auto batch =
      share_statistics(laid_out(input.detach(), input), options.eps(), running, world_, CallLabel{name_, tag});
  return normalise(input, weight, bias, batch, options.eps(), world_, {name_, tag | 1u});
}

}  // namespace lockstep::nn
