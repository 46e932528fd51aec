// SPDX-License-Identifier: Apache-2.0
// Gloo, by c10d's process group, with two things of our own: a tag per collective made of what must be equal on all
// ranks, so that different collectives never meet (gloo would abort the process, or mix their bytes in silence), and a
// way to end those in flight.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/backend.h"
#include "comm/network.h"
#include "comm/reduce_op.h"

namespace lockstep::comm {

using namespace std::chrono_literals;

namespace {

class TaggedGloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  // The low bits keep collectives apart that are in flight at the same time; the high ones, different collectives.
  void tag(const Call& call) {
    constexpr std::uint32_t kNumberBits = 0xfff;
    collectiveCounter_ = (call.signature() & ~kNumberBits) | (static_cast<std::uint32_t>(call.number) & kNumberBits);
  }

  void wake(const std::string& words) {
    for (const auto& context : contexts_) {
      for (int peer = 0; peer < getSize(); ++peer) {
        if (peer != getRank()) {
          static_cast<gloo::transport::tcp::Pair*>(context->getPair(peer).get())->signalExceptionExternal(words);
        }
      }
    }
  }
};

// The waiter may use another stream than the caller did, of which the allocator must know before it reuses the memory.
void keep_for_current_stream(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(tensor.device().type());
    at::Tensor(tensor).record_stream(guard.getStream(tensor.device()));
  }
}

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(c10::intrusive_ptr<TaggedGloo> group) : group_(std::move(group)) {}

  BackendKind kind() const override { return BackendKind::Gloo; }
  bool accepts(c10::Device device) const override { return device.is_cpu() || device.is_cuda(); }

  Issued all_reduce(const at::Tensor& tensor, const Call& call) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_reduce_op(call);
    group_->tag(call);
    return {group_->allreduce(tensors, options)};
  }

  Issued broadcast(const at::Tensor& bytes, const Call& call) override {
    std::vector<at::Tensor> tensors{bytes};
    c10d::BroadcastOptions options;
    options.rootRank = call.root;
    group_->tag(call);
    return {group_->broadcast(tensors, options)};
  }

  Issued all_gather(const at::Tensor& output, const at::Tensor& input, const Call& call) override {
    std::vector<std::vector<at::Tensor>> outputs{output.view({group_->getSize(), -1}).unbind(0)};
    std::vector<at::Tensor> inputs{input};
    group_->tag(call);
    return {group_->allgather(outputs, inputs)};
  }

  // c10d does the same inside: gloo has no reduce-scatter that may be called from here.
  Issued reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Call& call) override {
    const auto scratch = input.clone();
    auto issued = all_reduce(scratch, call);
    const auto part = scratch.narrow(0, group_->getRank() * output.numel(), output.numel());
    issued.finish = [output, part]() mutable {
      output.copy_(part);
      keep_for_current_stream(part);
    };
    return issued;
  }

  void wake(const std::string& words) noexcept override {
    try {
      group_->wake(words);
    } catch (const std::exception&) {
      // A pair that is gone already has nobody waiting.
    }
  }

 private:
  c10::intrusive_ptr<TaggedGloo> group_;
};

std::shared_ptr<gloo::transport::Device> make_device(const GroupPlan& plan) {
  if (!plan.interface.empty()) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(plan.interface);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(address_towards(plan.master_addr));
}

}  // namespace

std::unique_ptr<Backend> make_gloo_backend(const GroupPlan& plan) {
  // All ranks are there, so connecting is quick, or fails. Afterwards gloo's own timeout is a backstop behind the
  // watcher's, which says who is missing.
  auto options = c10d::ProcessGroupGloo::Options::create(std::min<std::chrono::milliseconds>(plan.timeout, 60s));
  options->devices.push_back(make_device(plan));
  auto group = c10::make_intrusive<TaggedGloo>(plan.store, plan.rank, plan.size, options);
  group->setTimeout(plan.timeout + 10s);
  return std::make_unique<GlooBackend>(std::move(group));
}

}  // namespace lockstep::comm
