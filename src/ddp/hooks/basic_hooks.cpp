// SPDX-License-Identifier: Apache-2.0
// The hooks that send a bucket as one message.
#include <c10/core/GradMode.h>

#include "core/check.h"
#include "lockstep/ddp/comm_hook.h"

namespace lockstep {
namespace {

CallLabel label_of(const GradientBucket& bucket) {
  return {core::str("gradient bucket ", bucket.index), bucket.tag};
}

/// Reduces `message`, which stands for the bucket in another dtype, and writes the average back.
std::function<void()> reduce_copy(const World& world, const GradientBucket& bucket, const at::Tensor& message) {
  auto work = world.all_reduce(message, ReduceOp::Sum, label_of(bucket));
  return [work, message, buffer = bucket.buffer, factor = bucket.remaining_factor]() mutable {
    const c10::NoGradGuard no_grad;
    work.wait();
    if (factor != 1) {
      message.mul_(factor);
    }
    buffer.copy_(message);
  };
}

}  // namespace

CommHook all_reduce_hook(const World& world) {
  return [world](const GradientBucket& bucket) -> std::function<void()> {
    auto work = world.all_reduce(bucket.buffer, ReduceOp::Sum, label_of(bucket));
    return [work, buffer = bucket.buffer, factor = bucket.remaining_factor]() mutable {
      work.wait();
      if (factor != 1) {
        const c10::NoGradGuard no_grad;
        buffer.mul_(factor);
      }
    };
  };
}

CommHook compress_hook(const World& world, at::ScalarType wire) {
  core::check(wire == at::kHalf || wire == at::kBFloat16, "ddp.compress_hook", [&] {
    return core::Problem{"the wire's dtype must have 16 bits", c10::toString(wire), "Half or BFloat16"};
  });
  return [world, wire, plain = all_reduce_hook(world)](const GradientBucket& bucket) {
    const auto dtype = bucket.buffer.scalar_type();
    if (dtype != at::kFloat && dtype != at::kDouble) {
      return plain(bucket);
    }
    return reduce_copy(world, bucket, bucket.buffer.to(wire));
  };
}

CommHook float_reduction_hook(const World& world) {
  return [world, plain = all_reduce_hook(world)](const GradientBucket& bucket) {
    const auto dtype = bucket.buffer.scalar_type();
    if (dtype != at::kHalf && dtype != at::kBFloat16) {
      return plain(bucket);
    }
    return reduce_copy(world, bucket, bucket.buffer.to(at::kFloat));
  };
}

}  // namespace lockstep
