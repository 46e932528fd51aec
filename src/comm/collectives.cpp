// SPDX-License-Identifier: Apache-2.0
// Each collective: check, reduce the tensors to flat memory, begin.
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "comm/checks.h"
#include "comm/world_impl.h"
#include "lockstep/comm/world.h"

namespace lockstep {

using comm::Call;
using comm::Issued;
using comm::Operation;

namespace {

// The tensor's memory as one dimension, in memory order and outside autograd. The version counter is shared, so that
// autograd notices what is about to be written.
at::Tensor flat(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

at::Tensor bytes(const at::Tensor& tensor) {
  return flat(tensor).view(at::kByte);
}

// Backends add plain numbers: complex ones are pairs of them, and booleans are bytes.
at::Tensor numbers(const at::Tensor& tensor) {
  const auto line = flat(tensor);
  if (line.is_complex()) {
    return at::view_as_real(line).view({-1});
  }
  return line.scalar_type() == at::kBool ? line.view(at::kByte) : line;
}

void mark_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

Call call_for(Operation operation, const at::Tensor& tensor, const CallLabel& label) {
  Call call{operation, at::kByte, 0, ReduceOp::Sum, 0, label};
  if (tensor.defined()) {
    call.dtype = tensor.scalar_type();
    call.elements = tensor.numel();
    call.device = tensor.device();
  }
  return call;
}

// Division comes after the sum: on every rank the same bits are divided by the same number.
Issued then_divide(Issued issued, const Call& call, const at::Tensor& result, int size) {
  if (call.op == ReduceOp::Average && size > 1) {
    issued.finish = [before = std::move(issued.finish), result, size]() mutable {
      if (before) {
        before();
      }
      result.div_(size);
    };
  }
  return issued;
}

// On CUDA, Work::wait leaves the host free; here the host has to know.
void wait_on_host(Work work, comm::Watch& watch) {
  work.wait();
  while (!work.done()) {
    watch.failure().wait([] { return false; }, std::chrono::milliseconds(1));
  }
  work.wait();
}

}  // namespace

Work World::all_reduce(const at::Tensor& tensor, ReduceOp op, const CallLabel& label) const {
  auto call = call_for(Operation::AllReduce, tensor, label);
  call.op = op;
  comm::check_dense(tensor, call, impl_->place());
  comm::check_reducible(tensor.scalar_type(), call);
  if (size() == 1) {
    return impl_->pass(call);
  }
  return impl_->issue(call, [&](const Call& numbered) {
    const auto target = numbers(tensor);
    mark_written(target);
    return then_divide(impl_->backend().all_reduce(target, numbered), numbered, target, size());
  });
}

Work World::broadcast(const at::Tensor& tensor, int root, const CallLabel& label) const {
  auto call = call_for(Operation::Broadcast, tensor, label);
  call.root = root;
  comm::check_dense(tensor, call, impl_->place());
  comm::check_root(call, impl_->place());
  if (size() == 1) {
    return impl_->pass(call);
  }
  return impl_->issue(call, [&](const Call& numbered) {
    const auto target = bytes(tensor);
    if (rank() != root) {
      mark_written(target);
    }
    return impl_->backend().broadcast(target, numbered);
  });
}

Work World::all_gather(const at::Tensor& output, const at::Tensor& input, const CallLabel& label) const {
  const auto call = call_for(Operation::AllGather, input, label);
  comm::check_contiguous(input, "input", call, impl_->place());
  comm::check_contiguous(output, "output", call, impl_->place());
  comm::check_parts(output, input, call, impl_->place());
  return impl_->issue(call, [&](const Call& numbered) {
    const auto target = bytes(output);
    mark_written(target);
    return impl_->backend().all_gather(target, bytes(input), numbered);
  });
}

Work World::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                           const CallLabel& label) const {
  auto call = call_for(Operation::ReduceScatter, output, label);
  call.op = op;
  comm::check_contiguous(input, "input", call, impl_->place());
  comm::check_contiguous(output, "output", call, impl_->place());
  comm::check_parts(input, output, call, impl_->place());
  comm::check_reducible(output.scalar_type(), call);
  return impl_->issue(call, [&](const Call& numbered) {
    const auto target = numbers(output);
    mark_written(target);
    return then_divide(impl_->backend().reduce_scatter(target, numbers(input), numbered), numbered, target, size());
  });
}

void World::barrier(const CallLabel& label) const {
  Call call{Operation::Barrier, at::kByte, 1, ReduceOp::Max, 0, label, impl_->control_device()};
  if (size() == 1) {
    impl_->pass(call);
    return;
  }
  const auto token = at::zeros({1}, at::TensorOptions(at::kByte).device(call.device));
  auto work = impl_->issue(call, [&](const Call& numbered) { return impl_->backend().all_reduce(token, numbered); });
  wait_on_host(work, impl_->watch());
}

namespace {

at::Tensor gathered(const World& world, const at::Tensor& mine, const CallLabel& label, comm::Watch& watch) {
  const auto all = at::empty({world.size() * mine.numel()}, mine.options());
  wait_on_host(world.all_gather(all, mine, label), watch);
  return all.cpu();
}

}  // namespace

// Lengths first, then texts padded to the longest.
std::vector<std::string> World::all_gather_text(const std::string& text, const CallLabel& label) const {
  const auto device = impl_->control_device();
  const auto length = static_cast<std::int64_t>(text.size());
  const auto lengths =
      gathered(*this, at::full({1}, length, at::TensorOptions(at::kLong).device(device)), label, impl_->watch());
  const auto longest = lengths.max().item<std::int64_t>();

  auto padded = text;
  padded.resize(static_cast<std::size_t>(longest));
  const auto mine = at::from_blob(padded.data(), {longest}, at::kByte).to(device);
  const auto texts = gathered(*this, mine, label, impl_->watch());

  std::vector<std::string> result;
  const auto* begin = reinterpret_cast<const char*>(texts.const_data_ptr<std::uint8_t>());
  for (std::int64_t r = 0; r < size(); ++r) {
    result.emplace_back(begin + r * longest, static_cast<std::size_t>(lengths[r].item<std::int64_t>()));
  }
  return result;
}

}  // namespace lockstep
