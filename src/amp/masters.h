// SPDX-License-Identifier: Apache-2.0
// fp32 masters of low precision parameters: where they live, and the passes that keep the two together.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::amp {

struct Master {
  std::string name;
  at::Tensor master;     // fp32 leaf, the parameter's sizes and strides
  at::Tensor parameter;  // fp16 or bf16
  at::Tensor gradient;   // fp32 buffer for the master's gradient; undefined until first needed
};

/// All masters of an Amp, and the flat memory that the first of them share.
class Masters {
 public:
  /// Makes masters of `parameters` (of any number of optimizers) in one flat tensor per device, in this order.
  void build(const std::vector<std::pair<std::string, at::Tensor>>& parameters);
  /// Makes a master in memory of its own.
  Master& add(const std::string& name, const at::Tensor& parameter);

  /// The master of a low precision parameter; none where it has none.
  Master* find(const at::Tensor& parameter);
  /// In the order in which they were made.
  const std::vector<std::unique_ptr<Master>>& all() const { return all_; }

 private:
  Master& insert(const std::string& name, const at::Tensor& parameter, const at::Tensor& master);

  std::vector<std::unique_ptr<Master>> all_;
  std::unordered_map<const void*, Master*> by_parameter_;
};

using MasterList = std::vector<Master*>;

/// Takes from the parameter each element whose bits are not those of the rounded master: somebody else wrote it.
void refresh(const MasterList& masters);
/// Takes every element from the parameter.
void derive(const MasterList& masters);
/// Rounds the masters into the parameters and bumps the parameters' versions.
void write_back(const MasterList& masters);

/// Turns the parameters' gradients into fp32 gradients of the masters, still scaled. The parameters' are undefined
/// afterwards.
void make_gradients(const MasterList& masters);
/// Hands the parameters' gradients, in their own dtype, to the masters.
void lend_gradients(const MasterList& masters);

}  // namespace lockstep::amp
