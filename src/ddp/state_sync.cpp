// SPDX-License-Identifier: Apache-2.0
#include "ddp/state_sync.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace lockstep::ddp {
namespace {

constexpr std::int64_t kMessageBytes = 64 << 20;

/// Tensors of one device that travel as one row of bytes, at most kMessageBytes (or one larger tensor).
struct Message {
  std::vector<at::Tensor> tensors;
  std::int64_t bytes = 0;

  bool has_room_for(const at::Tensor& t) const {
    return tensors[0].device() == t.device() && bytes + static_cast<std::int64_t>(t.nbytes()) <= kMessageBytes;
  }
};

std::vector<Message> messages_of(const std::vector<NamedTensor>& tensors) {
  std::vector<Message> messages;
  for (const auto& named : tensors) {
    auto place =
        std::find_if(messages.begin(), messages.end(), [&](const Message& m) { return m.has_room_for(named.tensor); });
    if (place == messages.end()) {
      place = messages.insert(place, Message{});
    }
    place->tensors.push_back(named.tensor);
    place->bytes += static_cast<std::int64_t>(named.tensor.nbytes());
  }
  for (auto& message : messages) {
    // Wide elements first: then each tensor starts at a multiple of its element size.
    std::stable_sort(message.tensors.begin(), message.tensors.end(),
                     [](const at::Tensor& a, const at::Tensor& b) { return a.element_size() > b.element_size(); });
  }
  return messages;
}

at::Tensor flatten(const Message& message) {
  std::vector<at::Tensor> parts;
  std::transform(message.tensors.begin(), message.tensors.end(), std::back_inserter(parts),
                 [](const at::Tensor& t) { return t.detach().reshape({-1}).view(at::kByte); });
  return at::cat(parts);
}

void unflatten(const at::Tensor& flat, const Message& message) {
  std::int64_t offset = 0;
  for (const auto& tensor : message.tensors) {
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    tensor.copy_(flat.narrow(0, offset, bytes).view(tensor.scalar_type()).view(tensor.sizes()));
    offset += bytes;
  }
}

}  // namespace

void broadcast_tensors(const World& world, const std::vector<NamedTensor>& tensors, int root,
                       const std::string& label) {
  if (world.size() == 1) {
    return;
  }
  const c10::NoGradGuard no_grad;
  for (const auto& message : messages_of(tensors)) {
    const auto flat = flatten(message);
    world.broadcast(flat, root, {.name = label}).wait();
    if (world.rank() != root) {
      unflatten(flat, message);
    }
  }
}

}  // namespace lockstep::ddp
