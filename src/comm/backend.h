// SPDX-License-Identifier: Apache-2.0
// What a library that moves bytes has to offer. Tensors arrive checked: flat, contiguous, not empty, on a device the
// backend accepts, without autograd. Complex tensors arrive as real ones, and Average as a sum to be divided later.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <functional>
#include <memory>

#include "comm/call.h"
#include "lockstep/comm/world.h"

namespace lockstep::comm {

/// A collective that a backend has begun.
struct Issued {
  /// None: already done.
  c10::intrusive_ptr<c10d::Work> work = {};
  /// To run on the waiter's thread and stream once `work` is done.
  std::function<void()> finish = {};
  /// Asks whether it has ended, from any thread. None: `work` tells through its future.
  std::function<bool()> probe = {};
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendKind kind() const = 0;
  virtual bool accepts(c10::Device device) const = 0;

  virtual Issued all_reduce(const at::Tensor& tensor, const Call& call) = 0;
  virtual Issued broadcast(const at::Tensor& bytes, const Call& call) = 0;
  virtual Issued all_gather(const at::Tensor& output, const at::Tensor& input, const Call& call) = 0;
  virtual Issued reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Call& call) = 0;

  /// Ends every collective in flight; later ones fail. From any thread, at any time, more than once.
  virtual void wake(const std::string& words) noexcept = 0;
};

/// How a group that is about to be made finds its members.
struct GroupPlan {
  /// Of this group alone: no key in it was used before.
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  c10::Device device = c10::kCPU;
  std::string interface = {};
  std::string master_addr = {};
  /// Of its collectives.
  std::chrono::milliseconds timeout = {};
};

std::unique_ptr<Backend> make_self_backend();
std::unique_ptr<Backend> make_gloo_backend(const GroupPlan& plan);
/// Throws InputError in a build without NCCL.
std::unique_ptr<Backend> make_nccl_backend(const GroupPlan& plan);
/// CUDA devices that this build can use with NCCL on this machine.
int nccl_device_count();

}  // namespace lockstep::comm
