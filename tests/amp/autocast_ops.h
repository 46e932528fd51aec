// SPDX-License-Identifier: Apache-2.0
// Calls of the operations on autocast's lists, the same as in tests/golden/amp.py.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <string>

namespace lockstep::amp::testing {

/// Makes a tensor of some sizes.
using Maker = std::function<at::Tensor(at::IntArrayRef)>;
/// Takes the maker of the first tensor argument and that of the others.
using Op = std::function<at::Tensor(const Maker&, const Maker&)>;

inline at::Tensor long_zeros(at::IntArrayRef sizes) {
  return at::zeros(sizes, at::kLong);
}
inline at::Tensor long_ones(at::IntArrayRef sizes) {
  return at::ones(sizes, at::kLong);
}

inline std::map<std::string, Op> low_precision_ops() {
  return {
      {"conv1d",
       [](auto& a, auto& b) {
         return at::conv1d(a({1, 2, 4}), b({2, 2, 3}));
       }},
      {"conv2d",
       [](auto& a, auto& b) {
         return at::conv2d(a({1, 2, 4, 4}), b({2, 2, 3, 3}));
       }},
      {"conv3d",
       [](auto& a, auto& b) {
         return at::conv3d(a({1, 2, 4, 4, 4}), b({2, 2, 3, 3, 3}));
       }},
      {"conv_tbc",
       [](auto& a, auto& b) {
         return at::conv_tbc(a({4, 2, 3}), b({2, 3, 2}), b({2}), 0);
       }},
      {"conv_transpose1d",
       [](auto& a, auto& b) {
         return at::conv_transpose1d(a({1, 2, 4}), b({2, 2, 3}));
       }},
      {"conv_transpose2d",
       [](auto& a, auto& b) {
         return at::conv_transpose2d(a({1, 2, 4, 4}), b({2, 2, 3, 3}));
       }},
      {"conv_transpose3d",
       [](auto& a, auto& b) {
         return at::conv_transpose3d(a({1, 2, 4, 4, 4}), b({2, 2, 3, 3, 3}));
       }},
      {"prelu", [](auto& a, auto& b) { return at::prelu(a({4}), b({1})); }},
      {"addmm",
       [](auto& a, auto& b) {
         return at::addmm(a({4, 4}), b({4, 4}), b({4, 4}));
       }},
      {"addmv",
       [](auto& a, auto& b) {
         return at::addmv(a({4}), b({4, 4}), b({4}));
       }},
      {"addr",
       [](auto& a, auto& b) {
         return at::addr(a({4, 4}), b({4}), b({4}));
       }},
      {"matmul",
       [](auto& a, auto& b) {
         return at::matmul(a({4, 4}), b({4, 4}));
       }},
      {"einsum",
       [](auto& a, auto& b) {
         return at::einsum("ij,jk->ik", {a({4, 4}), b({4, 4})});
       }},
      {"mm",
       [](auto& a, auto& b) {
         return at::mm(a({4, 4}), b({4, 4}));
       }},
      {"mv",
       [](auto& a, auto& b) {
         return at::mv(a({4, 4}), b({4}));
       }},
      {"linalg_vecdot", [](auto& a, auto& b) { return at::linalg_vecdot(a({4}), b({4})); }},
      {"linear",
       [](auto& a, auto& b) {
         return at::linear(a({4, 4}), b({4, 4}), b({4}));
       }},
      {"addbmm",
       [](auto& a, auto& b) {
         return at::addbmm(a({4, 4}), b({2, 4, 4}), b({2, 4, 4}));
       }},
      {"baddbmm",
       [](auto& a, auto& b) {
         return at::baddbmm(a({2, 4, 4}), b({2, 4, 4}), b({2, 4, 4}));
       }},
      {"bmm",
       [](auto& a, auto& b) {
         return at::bmm(a({2, 4, 4}), b({2, 4, 4}));
       }},
      {"chain_matmul",
       [](auto& a, auto& b) {
         return at::chain_matmul({a({4, 4}), b({4, 4})});
       }},
      {"linalg_multi_dot",
       [](auto& a, auto& b) {
         return at::linalg_multi_dot({a({4, 4}), b({4, 4}), b({4, 4})});
       }},
      {"scaled_dot_product_attention",
       [](auto& a, auto& b) {
         return at::scaled_dot_product_attention(a({1, 1, 4, 4}), b({1, 1, 4, 4}), b({1, 1, 4, 4}));
       }},
      {"lstm_cell",
       [](auto& a, auto& b) {
         return std::get<0>(at::lstm_cell(a({1, 4}), {b({1, 4}), b({1, 4})}, b({16, 4}), b({16, 4})));
       }},
      {"gru_cell",
       [](auto& a, auto& b) {
         return at::gru_cell(a({1, 4}), b({1, 4}), b({12, 4}), b({12, 4}));
       }},
      {"rnn_tanh_cell",
       [](auto& a, auto& b) {
         return at::rnn_tanh_cell(a({1, 4}), b({1, 4}), b({4, 4}), b({4, 4}));
       }},
      {"rnn_relu_cell",
       [](auto& a, auto& b) {
         return at::rnn_relu_cell(a({1, 4}), b({1, 4}), b({4, 4}), b({4, 4}));
       }},
  };
}

inline std::map<std::string, Op> fp32_ops() {
  return {
      {"acos", [](auto& a, auto&) { return at::acos(a({4})); }},
      {"asin", [](auto& a, auto&) { return at::asin(a({4})); }},
      {"cosh", [](auto& a, auto&) { return at::cosh(a({4})); }},
      {"erfinv", [](auto& a, auto&) { return at::erfinv(a({4})); }},
      {"exp", [](auto& a, auto&) { return at::exp(a({4})); }},
      {"expm1", [](auto& a, auto&) { return at::expm1(a({4})); }},
      {"log", [](auto& a, auto&) { return at::log(a({4})); }},
      {"log10", [](auto& a, auto&) { return at::log10(a({4})); }},
      {"log2", [](auto& a, auto&) { return at::log2(a({4})); }},
      {"log1p", [](auto& a, auto&) { return at::log1p(a({4})); }},
      {"reciprocal", [](auto& a, auto&) { return at::reciprocal(a({4})); }},
      {"rsqrt", [](auto& a, auto&) { return at::rsqrt(a({4})); }},
      {"sinh", [](auto& a, auto&) { return at::sinh(a({4})); }},
      {"tan", [](auto& a, auto&) { return at::tan(a({4})); }},
      {"pow_scalar", [](auto& a, auto&) { return at::pow(a({4}), 2); }},
      {"pow_tensor", [](auto& a, auto& b) { return at::pow(a({4}), b({4})); }},
      {"softplus", [](auto& a, auto&) { return at::softplus(a({4})); }},
      {"layer_norm",
       [](auto& a, auto& b) {
         return at::layer_norm(a({4, 4}), {4}, b({4}), b({4}));
       }},
      {"group_norm",
       [](auto& a, auto& b) {
         return at::group_norm(a({1, 4, 4}), 2, b({4}), b({4}));
       }},
      {"norm", [](auto& a, auto&) { return at::norm(a({4})); }},
      {"frobenius_norm",
       [](auto& a, auto&) {
         return at::linalg_matrix_norm(a({4, 4}));
       }},
      {"nuclear_norm",
       [](auto& a, auto&) {
         return at::nuclear_norm(a({4, 4}));
       }},
      {"cosine_similarity",
       [](auto& a, auto& b) {
         return at::cosine_similarity(a({4, 4}), b({4, 4}));
       }},
      {"dist", [](auto& a, auto& b) { return at::dist(a({4}), b({4})); }},
      {"pdist",
       [](auto& a, auto&) {
         return at::pdist(a({4, 4}));
       }},
      {"cdist",
       [](auto& a, auto& b) {
         return at::cdist(a({4, 4}), b({4, 4}));
       }},
      {"renorm",
       [](auto& a, auto&) {
         return at::renorm(a({4, 4}), 2, 0, 1.0);
       }},
      {"logsumexp",
       [](auto& a, auto&) {
         return at::logsumexp(a({4, 4}), 0);
       }},
      {"prod", [](auto& a, auto&) { return at::prod(a({4})); }},
      {"softmax", [](auto& a, auto&) { return at::softmax(a({4}), 0); }},
      {"log_softmax", [](auto& a, auto&) { return at::log_softmax(a({4}), 0); }},
      {"cumprod", [](auto& a, auto&) { return at::cumprod(a({4}), 0); }},
      {"cumsum", [](auto& a, auto&) { return at::cumsum(a({4}), 0); }},
      {"linalg_vector_norm", [](auto& a, auto&) { return at::linalg_vector_norm(a({4})); }},
      {"sum", [](auto& a, auto&) { return at::sum(a({4})); }},
      {"mean", [](auto& a, auto&) { return at::mean(a({4})); }},
      {"var", [](auto& a, auto&) { return at::var(a({4})); }},
  };
}

inline std::map<std::string, Op> losses() {
  return {
      {"poisson_nll_loss", [](auto& a, auto& b) { return at::poisson_nll_loss(a({4}), b({4}), true, false, 1e-8, 1); }},
      {"cosine_embedding_loss",
       [](auto& a, auto& b) {
         return at::cosine_embedding_loss(a({4, 4}), b({4, 4}), at::ones({4}));
       }},
      {"nll_loss",
       [](auto& a, auto&) {
         return at::nll_loss(a({4, 4}), long_zeros({4}));
       }},
      {"nll_loss2d",
       [](auto& a, auto&) {
         return at::nll_loss2d(a({1, 4, 4, 4}), long_zeros({1, 4, 4}));
       }},
      {"hinge_embedding_loss", [](auto& a, auto&) { return at::hinge_embedding_loss(a({4}), at::ones({4})); }},
      {"kl_div", [](auto& a, auto& b) { return at::kl_div(a({4}), b({4})); }},
      {"l1_loss", [](auto& a, auto& b) { return at::l1_loss(a({4}), b({4})); }},
      {"smooth_l1_loss", [](auto& a, auto& b) { return at::smooth_l1_loss(a({4}), b({4})); }},
      {"huber_loss", [](auto& a, auto& b) { return at::huber_loss(a({4}), b({4})); }},
      {"mse_loss", [](auto& a, auto& b) { return at::mse_loss(a({4}), b({4})); }},
      {"cross_entropy",
       [](auto& a, auto&) {
         return at::cross_entropy_loss(a({4, 4}), long_zeros({4}));
       }},
      {"ctc_loss",
       [](auto& a, auto&) {
         return at::ctc_loss(at::log_softmax(a({4, 1, 4}), -1), long_ones({1, 2}), at::full({1}, 4, at::kLong),
                             at::full({1}, 2, at::kLong));
       }},
      {"margin_ranking_loss", [](auto& a, auto& b) { return at::margin_ranking_loss(a({4}), b({4}), at::ones({4})); }},
      {"multilabel_margin_loss",
       [](auto& a, auto&) {
         return at::multilabel_margin_loss(a({4, 4}), long_ones({4, 4}));
       }},
      {"soft_margin_loss", [](auto& a, auto& b) { return at::soft_margin_loss(a({4}), b({4})); }},
      {"triplet_margin_loss",
       [](auto& a, auto& b) {
         return at::triplet_margin_loss(a({4, 4}), b({4, 4}), b({4, 4}));
       }},
      {"multi_margin_loss",
       [](auto& a, auto&) {
         return at::multi_margin_loss(a({4, 4}), long_ones({4}));
       }},
      {"binary_cross_entropy", [](auto& a, auto& b) { return at::binary_cross_entropy(a({4}), b({4})); }},
      {"binary_cross_entropy_with_logits",
       [](auto& a, auto& b) { return at::binary_cross_entropy_with_logits(a({4}), b({4})); }},
  };
}

inline std::map<std::string, Op> promoting_and_neutral_ops() {
  return {
      {"addcdiv", [](auto& a, auto& b) { return at::addcdiv(a({4}), b({4}), b({4})); }},
      {"addcmul", [](auto& a, auto& b) { return at::addcmul(a({4}), b({4}), b({4})); }},
      {"atan2", [](auto& a, auto& b) { return at::atan2(a({4}), b({4})); }},
      {"bilinear",
       [](auto& a, auto& b) {
         return at::bilinear(a({4, 4}), b({4, 4}), b({4, 4, 4}), {});
       }},
      {"cross", [](auto& a, auto& b) { return at::cross(a({3}), b({3}), 0); }},
      {"dot", [](auto& a, auto& b) { return at::dot(a({4}), b({4})); }},
      {"vdot", [](auto& a, auto& b) { return at::vdot(a({4}), b({4})); }},
      {"grid_sampler",
       [](auto& a, auto& b) {
         return at::grid_sampler(a({1, 1, 4, 4}), b({1, 4, 4, 2}), 0, 0, false);
       }},
      {"index_put", [](auto& a, auto& b) { return at::index_put(a({4}), {long_zeros({1})}, b({1})); }},
      {"tensordot",
       [](auto& a, auto& b) {
         return at::tensordot(a({4, 4}), b({4, 4}), {1}, {0});
       }},
      {"scatter_add", [](auto& a, auto& b) { return at::scatter_add(a({4}), 0, long_zeros({1}), b({1})); }},
      {"cat",
       [](auto& a, auto& b) {
         return at::cat({a({4}), b({4})});
       }},
      {"stack",
       [](auto& a, auto& b) {
         return at::stack({a({4}), b({4})});
       }},
      {"add", [](auto& a, auto& b) { return at::add(a({4}), b({4})); }},
      {"mul", [](auto& a, auto& b) { return at::mul(a({4}), b({4})); }},
      {"div", [](auto& a, auto& b) { return at::div(a({4}), b({4})); }},
      {"eq", [](auto& a, auto& b) { return at::eq(a({4}), b({4})); }},
      {"lt", [](auto& a, auto& b) { return at::lt(a({4}), b({4})); }},
      {"batch_norm",
       [](auto& a, auto& b) {
         return at::batch_norm(a({4, 4}), b({4}), b({4}), at::Tensor(), at::Tensor(), true, 0.1, 1e-5, false);
       }},
      {"relu", [](auto& a, auto&) { return at::relu(a({4})); }},
      {"gelu", [](auto& a, auto&) { return at::gelu(a({4})); }},
      {"avg_pool2d",
       [](auto& a, auto&) {
         return at::avg_pool2d(a({1, 1, 4, 4}), 2);
       }},
      {"max_pool2d",
       [](auto& a, auto&) {
         return at::max_pool2d(a({1, 1, 4, 4}), 2);
       }},
      {"reflection_pad1d",
       [](auto& a, auto&) {
         return at::reflection_pad1d(a({1, 1, 4}), {1, 1});
       }},
      {"upsample_nearest2d",
       [](auto& a, auto&) {
         return at::upsample_nearest2d(a({1, 1, 4, 4}), {8, 8}, 2.0, 2.0);
       }},
      {"upsample_bilinear2d",
       [](auto& a, auto&) {
         return at::upsample_bilinear2d(a({1, 1, 4, 4}), {8, 8}, false, 2.0, 2.0);
       }},
      {"embedding",
       [](auto& a, auto&) {
         return at::embedding(a({4, 4}), long_zeros({2}));
       }},
      {"exp_", [](auto& a, auto&) { return a({4}).exp_(); }},
      {"add_", [](auto& a, auto& b) { return a({4}).add_(b({4})); }},
  };
}

}  // namespace lockstep::amp::testing
