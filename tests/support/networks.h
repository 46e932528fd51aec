// SPDX-License-Identifier: Apache-2.0
// Small networks of the usual kinds. `forward` takes a batch and returns its loss, a mean over samples, so that the
// loss of a joined batch is the mean of its equal shares' losses.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "support/models.h"

namespace lockstep::test {

struct Network : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& batch) = 0;
  /// `rows` samples that depend on `seed` alone, in `dtype` where they are not whole numbers.
  virtual at::Tensor batch(std::int64_t rows, std::uint64_t seed, at::ScalarType dtype) const = 0;

  /// Every parameter once, as an optimizer wants them.
  std::vector<at::Tensor> unique_parameters() const {
    std::vector<at::Tensor> unique;
    for (const auto& p : parameters()) {
      if (std::none_of(unique.begin(), unique.end(), [&](const at::Tensor& u) { return u.is_same(p); })) {
        unique.push_back(p);
      }
    }
    return unique;
  }
};

struct Mlp : Network {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 9));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(9, 3));

  at::Tensor forward(const at::Tensor& x) override { return second(at::tanh(first(x))).square().mean(); }
  at::Tensor batch(std::int64_t rows, std::uint64_t seed, at::ScalarType dtype) const override {
    return random({rows, 6}, seed).to(dtype);
  }
};

struct Cnn : Network {
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(2, 4, 3));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(4));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 3));

  at::Tensor forward(const at::Tensor& x) override {
    return head(at::tanh(norm(conv(x))).mean({2, 3})).square().mean();
  }
  at::Tensor batch(std::int64_t rows, std::uint64_t seed, at::ScalarType dtype) const override {
    return random({rows, 2, 5, 5}, seed).to(dtype);
  }
};

constexpr std::int64_t kWords = 11;
constexpr std::int64_t kLength = 5;

/// Sentences of kLength words; the task is to name each next word.
struct WordNetwork : Network {
  at::Tensor batch(std::int64_t rows, std::uint64_t seed, at::ScalarType /*dtype*/) const override {
    return (random({rows, kLength + 1}, seed).abs() * 1e4).to(at::kLong).remainder(kWords);
  }
  static at::Tensor next_word_loss(const at::Tensor& scores, const at::Tensor& sentences) {
    return at::cross_entropy_loss(scores.reshape({-1, kWords}), sentences.narrow(1, 1, kLength).reshape({-1}));
  }
};

/// One table of words, registered twice: on the way in and on the way out.
struct TiedEmbedding : WordNetwork {
  torch::nn::Embedding in = register_module("in", torch::nn::Embedding(kWords, 6));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(6, 6));
  at::Tensor out = register_parameter("out", in->weight);

  at::Tensor forward(const at::Tensor& sentences) override {
    return next_word_loss(at::linear(at::tanh(middle(in(sentences.narrow(1, 0, kLength)))), out), sentences);
  }
};

/// One block of self-attention and a feed-forward layer, normalised before each.
struct Transformer : WordNetwork {
  static constexpr std::int64_t kWidth = 8;
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(kWords, kWidth));
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear mix = register_module("mix", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
  torch::nn::Linear scores = register_module("scores", torch::nn::Linear(kWidth, kWords));
  at::Tensor gain = register_parameter("gain", at::ones({kWidth}));
  at::Tensor shift = register_parameter("shift", at::zeros({kWidth}));

  at::Tensor forward(const at::Tensor& sentences) override {
    auto x = words(sentences.narrow(1, 0, kLength));
    const auto parts = qkv(at::layer_norm(x, {kWidth}, gain, shift)).chunk(3, -1);
    const auto attention = at::softmax(at::matmul(parts[0], parts[1].transpose(1, 2)) / std::sqrt(kWidth), -1);
    x = x + mix(at::matmul(attention, parts[2]));
    x = x + down(at::gelu(up(at::layer_norm(x, {kWidth}, gain, shift))));
    return next_word_loss(scores(x), sentences);
  }
};

inline std::shared_ptr<Network> make_network(const std::string& kind) {
  if (kind == "Mlp") {
    return std::make_shared<Mlp>();
  }
  if (kind == "Cnn") {
    return std::make_shared<Cnn>();
  }
  if (kind == "TiedEmbedding") {
    return std::make_shared<TiedEmbedding>();
  }
  return std::make_shared<Transformer>();
}

/// With parameters that depend on `seed` alone.
inline std::shared_ptr<Network> make_network(const std::string& kind, std::uint64_t seed, at::ScalarType dtype) {
  auto network = make_network(kind);
  fill_parameters(network->unique_parameters(), seed);
  network->to(dtype);
  return network;
}

}  // namespace lockstep::test
