// SPDX-License-Identifier: Apache-2.0
// Calls of the operations that only the CPU's list of autocast has, the same as in tests/golden/amp.py.
#pragma once

#include "amp/autocast_ops.h"

namespace lockstep::amp::testing {

inline std::map<std::string, Op> cpu_pools_and_pads() {
  return {
      {"adaptive_avg_pool3d",
       [](auto& a, auto&) {
         return at::adaptive_avg_pool3d(a({1, 1, 4, 4, 4}), {2, 2, 2});
       }},
      {"adaptive_max_pool3d",
       [](auto& a, auto&) {
         return std::get<0>(at::adaptive_max_pool3d(a({1, 1, 4, 4, 4}), {2, 2, 2}));
       }},
      {"avg_pool3d",
       [](auto& a, auto&) {
         return at::avg_pool3d(a({1, 1, 4, 4, 4}), 2);
       }},
      {"max_pool3d",
       [](auto& a, auto&) {
         return at::max_pool3d(a({1, 1, 4, 4, 4}), 2);
       }},
      {"max_unpool2d",
       [](auto& a, auto&) {
         return at::max_unpool2d(a({1, 1, 1, 1}), long_zeros({1, 1, 1, 1}), {2, 2});
       }},
      {"reflection_pad2d",
       [](auto& a, auto&) {
         return at::reflection_pad2d(a({1, 1, 4, 4}), {1, 1, 1, 1});
       }},
      {"replication_pad1d",
       [](auto& a, auto&) {
         return at::replication_pad1d(a({1, 1, 4}), {1, 1});
       }},
      {"replication_pad2d",
       [](auto& a, auto&) {
         return at::replication_pad2d(a({1, 1, 4, 4}), {1, 1, 1, 1});
       }},
      {"replication_pad3d",
       [](auto& a, auto&) {
         return at::replication_pad3d(a({1, 1, 4, 4, 4}), {1, 1, 1, 1, 1, 1});
       }},
      {"index_copy", [](auto& a, auto& b) { return at::index_copy(a({4}), 0, long_zeros({1}), b({1})); }},
  };
}

inline std::map<std::string, Op> cpu_transforms() {
  return {
      {"polar", [](auto& a, auto& b) { return at::real(at::polar(a({4}), b({4}))); }},
      {"quantile", [](auto& a, auto&) { return at::quantile(a({4}), 0.5); }},
      {"nanquantile", [](auto& a, auto&) { return at::nanquantile(a({4}), 0.5); }},
      {"trace",
       [](auto& a, auto&) {
         return at::trace(a({4, 4}));
       }},
      {"stft",
       [](auto& a, auto&) {
         return at::real(at::stft(a({16}), 4, std::nullopt, std::nullopt, std::nullopt, false, std::nullopt, true));
       }},
      {"fft_fft", [](auto& a, auto&) { return at::real(at::fft_fft(a({4}))); }},
      {"fft_ifft", [](auto& a, auto&) { return at::real(at::fft_ifft(a({4}))); }},
      {"fft_rfft", [](auto& a, auto&) { return at::real(at::fft_rfft(a({4}))); }},
      {"fft_irfft", [](auto& a, auto&) { return at::fft_irfft(a({4})); }},
      {"fft_hfft", [](auto& a, auto&) { return at::fft_hfft(a({4})); }},
  };
}

inline std::map<std::string, Op> cpu_linear_algebra() {
  return {
      {"cholesky",
       [](auto& a, auto&) {
         return at::linalg_cholesky(a({1, 1}));
       }},
      {"cholesky_inverse",
       [](auto& a, auto&) {
         return at::cholesky_inverse(a({1, 1}));
       }},
      {"cholesky_solve",
       [](auto& a, auto& b) {
         return at::cholesky_solve(a({1, 1}), b({1, 1}));
       }},
      {"inverse",
       [](auto& a, auto&) {
         return at::inverse(a({1, 1}));
       }},
      {"pinverse",
       [](auto& a, auto&) {
         return at::pinverse(a({2, 2}));
       }},
      {"geqrf",
       [](auto& a, auto&) {
         return std::get<0>(at::geqrf(a({2, 2})));
       }},
      {"triangular_solve",
       [](auto& a, auto& b) {
         return std::get<0>(at::triangular_solve(a({1, 1}), b({1, 1})));
       }},
      {"linalg_cond",
       [](auto& a, auto&) {
         return at::linalg_cond(a({1, 1}));
       }},
      {"linalg_solve",
       [](auto& a, auto& b) {
         return at::linalg_solve(a({1, 1}), b({1}));
       }},
      {"linalg_svdvals",
       [](auto& a, auto&) {
         return at::linalg_svdvals(a({2, 2}));
       }},
      {"linalg_eigvalsh",
       [](auto& a, auto&) {
         return at::linalg_eigvalsh(a({2, 2}));
       }},
      {"linalg_inv",
       [](auto& a, auto&) {
         return at::linalg_inv(a({1, 1}));
       }},
      {"linalg_qr",
       [](auto& a, auto&) {
         return std::get<0>(at::linalg_qr(a({2, 2})));
       }},
      {"linalg_svd",
       [](auto& a, auto&) {
         return std::get<1>(at::linalg_svd(a({2, 2})));
       }},
      {"linalg_eigh",
       [](auto& a, auto&) {
         return std::get<0>(at::linalg_eigh(a({2, 2})));
       }},
      {"linalg_lstsq",
       [](auto& a, auto& b) {
         return std::get<0>(at::linalg_lstsq(a({1, 1}), b({1, 1})));
       }},
      {"linalg_householder_product",
       [](auto& a, auto& b) {
         return at::linalg_householder_product(a({2, 2}), b({2}));
       }},
  };
}

}  // namespace lockstep::amp::testing
