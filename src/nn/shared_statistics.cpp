// SPDX-License-Identifier: Apache-2.0
#include "nn/shared_statistics.h"

#include <ATen/ATen.h>

#include "core/check.h"

namespace lockstep::nn {
namespace {

using core::str;

// An fp32 number counts exactly to 2^24 only, so a count travels as two digits.
constexpr std::int64_t kDigit = 1 << 16;

// Mean and sum of squared deviations of each channel, and how many values they are of: 2 * C + 2 numbers.
at::Tensor message_of(const at::Tensor& input) {
  const auto local = channel_moments(input);
  const auto count = values_per_channel(input);
  const auto channels = input.size(1);
  auto message = at::empty({2 * channels + 2}, local.mean.options());
  message.narrow(0, 0, channels).copy_(local.mean);
  auto squares = message.narrow(0, channels, channels);
  at::mul_out(squares, local.var, at::scalar_tensor(count, local.var.options().device(at::kCPU)));
  message.narrow(0, 2 * channels, 1).fill_(count / kDigit);
  message.narrow(0, 2 * channels + 1, 1).fill_(count % kDigit);
  return message;
}

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

SharedStatistics standard(const at::Tensor& input, const at::Tensor& counts, double eps) {
  const auto options = input.options().dtype(statistics_dtype(input));
  const auto ones = at::ones({input.size(1)}, options);
  return {{at::zeros_like(ones), ones}, at::rsqrt(ones + eps), ones, counts, 0};
}

// Mean of the means and the spread around it, weighted by counts (Chan, Golub and LeVeque): in double, since these are
// few numbers.
SharedStatistics merged(const at::Tensor& all, std::int64_t channels, double eps) {
  const auto dtype = all.scalar_type();
  const auto wide = all.to(at::kDouble);
  const auto counts =
      wide.narrow(1, 2 * channels, 1) * static_cast<double>(kDigit) + wide.narrow(1, 2 * channels + 1, 1);
  const auto means = wide.narrow(1, 0, channels);
  const auto total = counts.sum();
  const auto mean = (means * counts).sum(0) / total;
  const auto spread = (wide.narrow(1, channels, channels) + (means - mean).square() * counts).sum(0);
  const auto var = spread / total;
  return {{mean.to(dtype), var.to(dtype)},
          at::rsqrt(var + eps).to(dtype),
          (spread / (total - 1)).to(dtype),
          counts.to(at::kInt).view({-1}),
          std::nullopt};
}

}  // namespace

// A rank with two values or more knows that the total is no special case. Else only the device knows, and the host has
// to ask; where the total is special, every rank has to.
SharedStatistics share_statistics(const at::Tensor& input, double eps, const World& world, const CallLabel& label) {
  const PlainMath plain;
  const auto all = gathered(message_of(input), world, label);
  auto result = merged(all, input.size(1), eps);
  if (values_per_channel(input) <= 1) {
    const auto total = result.counts.sum().item<std::int64_t>();
    check_total(total, label);
    if (total == 0) {
      return standard(input, result.counts, eps);
    }
    result.total = total;
  }
  return result;
}

at::Tensor finite(const at::Tensor& a, const at::Tensor& b) {
  return at::isfinite(a).all().logical_and(at::isfinite(b).all()).to(at::kLong);
}

void update_running(const Running& running, const SharedStatistics& batch, std::optional<double> momentum,
                    bool skip_non_finite) {
  const PlainMath plain;
  const auto& mean = batch.moments.mean;
  const auto good = skip_non_finite ? finite(mean, batch.moments.var) : at::ones({}, running.batches.options());
  running.batches.add_(good);
  const auto options = mean.options();
  const auto factor = momentum ? at::scalar_tensor(*momentum, options.dtype(at::kDouble))
                               : running.batches.to(at::kDouble).clamp_min(1).reciprocal();
  const auto take = [&](const at::Tensor& kept, const at::Tensor& value) {
    const auto wide = kept.to(at::kDouble);
    const auto next = wide * (1 - factor) + value.to(at::kDouble) * factor;
    kept.copy_(at::where(good.to(at::kBool), next, wide));
  };
  take(running.mean, mean);
  take(running.var, batch.unbiased_var);
}

}  // namespace lockstep::nn
