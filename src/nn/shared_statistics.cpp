// SPDX-License-Identifier: Apache-2.0
#include "nn/shared_statistics.h"

#include <ATen/ATen.h>

#include "core/check.h"
#include "nn/on_cuda.h"

namespace lockstep::nn {
namespace {

using core::str;

at::Tensor gathered(const at::Tensor& message, const World& world, const CallLabel& label) {
  auto all = at::empty({world.size(), message.numel()}, message.options());
  world.all_gather(all.view({-1}), message, label).wait();
  return all;
}

void check_total(std::int64_t total, const CallLabel& label) {
  core::check(total != 1, "nn.SyncBatchNorm", [&] {
    return core::Problem{str("'", label.name, "' has one value a channel on all ranks together"), "1", "2 or more",
                         "a single value has no variance: use larger batches, or eval()"};
  });
}

SharedStatistics standard(const SharedStatistics& like, double eps) {
  const auto ones = at::ones_like(like.invstd);
  return {{at::zeros_like(ones), ones}, at::rsqrt(ones + eps), like.counts};
}

// `good` is one for a batch that is to be taken, else zero.
void update(const Running& running, const at::Tensor& mean, const at::Tensor& unbiased_var, const at::Tensor& good) {
  running.batches.add_(good);
  const auto factor = running.momentum ? at::scalar_tensor(*running.momentum, mean.options().dtype(at::kDouble))
                                       : running.batches.to(at::kDouble).clamp_min(1).reciprocal();
  const auto take = [&](const at::Tensor& kept, const at::Tensor& value) {
    const auto wide = kept.to(at::kDouble);
    kept.copy_(at::where(good.to(at::kBool), wide * (1 - factor) + value * factor, wide));
  };
  take(running.mean, mean);
  take(running.var, unbiased_var);
}

// Mean of the means and the spread around it, weighted by counts (Chan, Golub and LeVeque): in double, since these are
// few numbers.
SharedStatistics merge_by_parts(const at::Tensor& messages, double eps, const Running& running) {
  const auto dtype = messages.scalar_type();
  const auto wide = messages.to(at::kDouble);
  const auto channels = wide.size(1) / 2 - 1;
  const auto counts =
      wide.narrow(1, 2 * channels, 1) * static_cast<double>(kDigit) + wide.narrow(1, 2 * channels + 1, 1);
  const auto means = wide.narrow(1, 0, channels), vars = wide.narrow(1, channels, channels);
  const auto total = counts.sum();
  const auto mean = (means * counts).sum(0) / total;
  const auto spread = ((vars + (means - mean).square()) * counts).sum(0);
  const auto var = spread / total;
  SharedStatistics result{
      {mean.to(dtype), var.to(dtype)}, at::rsqrt(var + eps).to(dtype), counts.to(at::kInt).view({-1})};
  if (running.mean.defined()) {
    const auto enough = total.ge(2).to(at::kLong);
    update(running, mean, spread / (total - 1),
           running.skip_non_finite ? enough * finite(result.moments.mean, result.moments.var) : enough);
  }
  return result;
}

}  // namespace

at::Tensor message_of(const Moments& moments, std::int64_t count) {
  if (moments.mean.is_cuda()) {
    return message_on_cuda(moments, count);
  }
  const auto digits = at::tensor({count / kDigit, count % kDigit}, moments.mean.options());
  return at::cat({moments.mean, moments.var, digits});
}

SharedStatistics merge(const at::Tensor& messages, double eps, const Running& running) {
  const auto dtype = messages.scalar_type();
  // Module::to(dtype) casts the counter with the rest; opt levels may cast the statistics.
  const bool same =
      !running.mean.defined() || (running.mean.scalar_type() == dtype && running.var.scalar_type() == dtype &&
                                  running.batches.scalar_type() == at::kLong);
  return messages.is_cuda() && same ? merge_on_cuda(messages, eps, running) : merge_by_parts(messages, eps, running);
}

// A rank with two values or more knows that the total is no special case. Else only the device knows, and the host has
// to ask; where the total is special, every rank has to.
SharedStatistics share_statistics(const at::Tensor& input, double eps, const Running& running, const World& world,
                                  const CallLabel& label) {
  const PlainMath plain;
  const auto count = values_per_channel(input);
  const auto result = merge(gathered(message_of(channel_moments(input), count), world, label), eps, running);
  if (count > 1) {
    return result;
  }
  const auto total = result.counts.sum().item<std::int64_t>();
  check_total(total, label);
  return total == 0 ? standard(result, eps) : result;
}

at::Tensor finite(const at::Tensor& a, const at::Tensor& b) {
  return at::isfinite(a).all().logical_and(at::isfinite(b).all()).to(at::kLong);
}

}  // namespace lockstep::nn
