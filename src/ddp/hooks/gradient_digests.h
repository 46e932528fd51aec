// SPDX-License-Identifier: Apache-2.0
// Running hashes of what this rank hands to the reductions and of what it gets back: when replicas part, they tell
// whether a reduction or a rank is to blame.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/ddp/comm_hook.h"

namespace lockstep::ddp {

class GradientDigests : public std::enable_shared_from_this<GradientDigests> {
 public:
  GradientDigests(std::int64_t buckets, c10::Device device);

  /// `hook`, with each bucket hashed before it and after it has finished.
  CommHook around(CommHook hook);

  /// One number a bucket (int64) over all reduced passes so far, on the device and in the order of its current stream.
  /// Once two ranks' numbers differ they differ for ever, whenever they are compared.
  const at::Tensor& own() const { return own_; }
  const at::Tensor& reduced() const { return reduced_; }

 private:
  at::Tensor own_;
  at::Tensor reduced_;
};

}  // namespace lockstep::ddp
