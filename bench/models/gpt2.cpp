// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2.h"

#include <ATen/ATen.h>

#include <tuple>

#include "lockstep/nn/cross_entropy.h"

namespace lockstep::bench {

namespace nn = torch::nn;
namespace {

lockstep::nn::LayerNorm layer_norm(std::int64_t width) {
  return lockstep::nn::LayerNorm(nn::LayerNormOptions({width}));
}

}  // namespace

BlockImpl::BlockImpl(std::int64_t width, std::int64_t heads)
    : heads_(heads),
      norm1_(register_module("norm1", layer_norm(width))),
      norm2_(nullptr),
      qkv_(register_module("qkv", lockstep::nn::Linear(width, 3 * width))),
      project_(register_module("project", lockstep::nn::Linear(width, width))),
      expand_(nullptr),
      contract_(nullptr) {
  norm2_ = register_module("norm2", layer_norm(width));
  expand_ = register_module("expand", lockstep::nn::Linear(width, 4 * width));
  contract_ = register_module("contract", lockstep::nn::Linear(4 * width, width));
}

at::Tensor BlockImpl::attend(const at::Tensor& x) {
  const auto batch = x.size(0), length = x.size(1), width = x.size(2);
  const auto parts = qkv_->forward(x).split(width, -1);
  const auto heads = [&](const at::Tensor& part) {
    return part.view({batch, length, heads_, width / heads_}).transpose(1, 2);
  };
  const auto out = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.0,
                                                    /*is_causal=*/true);
  return project_->forward(out.transpose(1, 2).reshape({batch, length, width}));
}

std::pair<at::Tensor, at::Tensor> BlockImpl::forward(const at::Tensor& stream, const at::Tensor& addend) {
  const auto first = norm1_->forward(stream, addend);
  const auto second = norm2_->forward(first.sum, attend(first.normed));
  return {second.sum, contract_->forward(expand_->forward_gelu(second.normed))};
}

Gpt2Impl::Gpt2Impl(const Gpt2Options& options)
    : token_(register_module("token", nn::Embedding(options.vocabulary, options.width))),
      position_(register_module("position", nn::Embedding(options.context, options.width))),
      blocks_(register_module("blocks", nn::ModuleList())),
      norm_(nullptr) {
  for (std::int64_t i = 0; i < options.layers; ++i) {
    blocks_->push_back(Block(options.width, options.heads));
  }
  norm_ = register_module("norm", layer_norm(options.width));
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens, const at::Tensor& targets) {
  const auto places = at::arange(tokens.size(1), tokens.options());
  auto stream = token_->forward(tokens) + position_->forward(places);
  at::Tensor addend;
  for (const auto& block : *blocks_) {
    std::tie(stream, addend) = block->as<Block>()->forward(stream, addend);
  }
  const auto logits = at::linear(norm_->forward(stream, addend).normed, token_->weight);
  return lockstep::nn::cross_entropy(logits.flatten(0, 1), targets.flatten());
}

}  // namespace lockstep::bench
