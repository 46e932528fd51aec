// SPDX-License-Identifier: Apache-2.0
// NCCL, by c10d's process group. Nothing tells a rank that a peer is gone: the watcher decides, and ends the
// communicators, which frees the streams that wait for them.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/backend.h"
#include "comm/reduce_op.h"

namespace lockstep::comm {
namespace {

using Group = c10d::ProcessGroupNCCL;

bool capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

// The copy holds the events of a collective and none of its tensors. A collective inside a graph under capture never
// ends by itself, and asking for it would spoil the capture.
std::function<bool()> probe_of(const c10::intrusive_ptr<c10d::Work>& work) {
  if (capturing()) {
    return [] { return true; };
  }
  auto copy = c10::make_intrusive<Group::WorkNCCL>(static_cast<const Group::WorkNCCL&>(*work));
  return [copy] {
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    return copy->isCompleted();
  };
}

Issued issued(c10::intrusive_ptr<c10d::Work> work) {
  auto probe = probe_of(work);
  return {std::move(work), {}, std::move(probe)};
}

class NcclBackend final : public Backend {
 public:
  NcclBackend(c10::intrusive_ptr<Group> group, c10::Device device) : group_(std::move(group)), device_(device) {}

  ~NcclBackend() override {
    try {
      if (!woken_.exchange(true)) {
        group_->shutdown();
      }
    } catch (const std::exception&) {
      // A group that cannot end in peace goes with its destructor.
    }
  }

  BackendKind kind() const override { return BackendKind::Nccl; }
  bool accepts(c10::Device device) const override { return device == device_; }

  Issued all_reduce(const at::Tensor& tensor, const Call& call) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_reduce_op(call);
    return issued(group_->allreduce(tensors, options));
  }

  Issued broadcast(const at::Tensor& bytes, const Call& call) override {
    std::vector<at::Tensor> tensors{bytes};
    c10d::BroadcastOptions options;
    options.rootRank = call.root;
    return issued(group_->broadcast(tensors, options));
  }

  Issued all_gather(const at::Tensor& output, const at::Tensor& input, const Call&) override {
    at::Tensor target = output;
    at::Tensor source = input;
    return issued(group_->_allgather_base(target, source));
  }

  Issued reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Call& call) override {
    at::Tensor target = output;
    at::Tensor source = input;
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d_reduce_op(call);
    return issued(group_->_reduce_scatter_base(target, source, options));
  }

  void wake(const std::string&) noexcept override {
    try {
      if (!woken_.exchange(true)) {
        group_->abort();
      }
    } catch (const std::exception&) {
      // The words are known already; that the communicators did not end in time adds nothing to them.
    }
  }

 private:
  const c10::intrusive_ptr<Group> group_;
  const c10::Device device_;
  std::atomic<bool> woken_{false};
};

}  // namespace

std::unique_ptr<Backend> make_nccl_backend(const GroupPlan& plan) {
  const c10::cuda::CUDAGuard guard(plan.device);
  auto options = Group::Options::create();
  options->timeout = plan.timeout;
  auto group = c10::make_intrusive<Group>(plan.store, plan.rank, plan.size, options);
  group->setBoundDeviceId(plan.device);
  // Communicators are made now: a graph capture that comes first could not make them.
  group->eagerConnectSingleDevice(plan.device);
  return std::make_unique<NcclBackend>(std::move(group), plan.device);
}

int nccl_device_count() {
  return c10::cuda::device_count();
}

}  // namespace lockstep::comm
