// SPDX-License-Identifier: Apache-2.0
// Memory laid out like a parameter's: who is adjacent there is adjacent here, so that a pass finds long spans.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <utility>
#include <vector>

namespace lockstep::optim {

/// True if `a` and `b`, of equal sizes, are dense and walk through memory in the same order.
bool same_walk(const at::Tensor& a, const at::Tensor& b);

/// Elements neither overlap nor leave gaps.
bool is_dense(const at::Tensor& tensor);

/// A tensor wanted in a parameter's layout.
struct Wanted {
  const at::Tensor* like;  // the parameter; its strides are taken if it is dense
  at::Tensor* into;        // assigned
  at::Tensor initial;      // values, of the same sizes; undefined: zeros
  at::ScalarType dtype;
  int lane;  // tensors of different lanes do not share an allocation
};

/// Makes the wanted tensors, one allocation for each (device, dtype, lane), in the order of the parameters' addresses.
/// Each is a tensor with a storage of its own size: a checkpoint saves that much and no more.
void make_adjacent(std::vector<Wanted> wanted);

/// Dense stand-ins for tensors whose memory a pass cannot walk, for the time of one step.
class Staging {
 public:
  /// `tensor` itself if it walks like `model`, else a copy that does: dense, with `model`'s strides if that is dense.
  const at::Tensor& read(const at::Tensor& tensor, const at::Tensor& model);

  /// The same for a tensor that the pass writes: `write_back` copies the result into it.
  const at::Tensor& write(const at::Tensor& tensor, const at::Tensor& model);

  void write_back();

 private:
  std::deque<at::Tensor> copies_;
  std::vector<std::pair<at::Tensor, const at::Tensor*>> written_;
};

}  // namespace lockstep::optim
