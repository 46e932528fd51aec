// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <utility>

#include "lockstep/nn/layer_norm.h"
#include "lockstep/nn/linear.h"

namespace lockstep::bench {

/// The defaults are GPT-2's smallest: 124 million parameters, the vocabulary padded to a multiple of 64.
struct Gpt2Options {
  std::int64_t vocabulary = 50304;
  std::int64_t context = 1024;
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
};

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(std::int64_t width, std::int64_t heads);
  /// The stream and what the part before adds to it (undefined: nothing), [batch, length, width] each; the same after
  /// this block.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& stream, const at::Tensor& addend);

 private:
  at::Tensor attend(const at::Tensor& x);

  std::int64_t heads_;
  lockstep::nn::LayerNorm norm1_, norm2_;
  lockstep::nn::Linear qkv_, project_, expand_, contract_;
};
TORCH_MODULE(Block);

/// GPT-2 with tied embeddings and no dropout.
class Gpt2Impl : public torch::nn::Module {
 public:
  explicit Gpt2Impl(const Gpt2Options& options = {});
  /// Tokens and targets, int64 [batch, length] -> the mean loss over all tokens, fp32.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets);

 private:
  torch::nn::Embedding token_, position_;
  torch::nn::ModuleList blocks_;
  lockstep::nn::LayerNorm norm_;
};
TORCH_MODULE(Gpt2);

}  // namespace lockstep::bench
