// SPDX-License-Identifier: Apache-2.0
// Models on ranks that start from different weights, and all that has to be equal on them afterwards.
#pragma once

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>

#include "lockstep/amp/opt_level.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"

namespace lockstep::amp::testing {

inline std::uint64_t seed_of(const World& world) {
  return 100 + static_cast<std::uint64_t>(world.rank());
}

inline torch::nn::Sequential net_with_batchnorm(std::uint64_t seed) {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
  lockstep::test::fill_parameters(net->parameters(), seed);
  return net;
}

inline std::string bytes_of(const at::Tensor& tensor) {
  const auto dense = tensor.detach().contiguous();
  return {static_cast<const char*>(dense.data_ptr()), dense.nbytes()};
}

/// All that decides a step: parameters, buffers, masters, moments, scales.
inline std::string everything(torch::nn::Sequential& net, torch::optim::Adam& optimizer, const Amp& amp) {
  std::string bytes;
  for (const auto& tensor : net->parameters()) {
    bytes += bytes_of(tensor);
  }
  for (const auto& tensor : net->buffers()) {
    bytes += bytes_of(tensor);
  }
  for (const auto& item : amp.masters()) {
    bytes += bytes_of(item.master);
  }
  for (const auto& parameter : master_params(optimizer)) {
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (state != optimizer.state().end()) {
      const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state->second);
      bytes += bytes_of(adam.exp_avg()) + bytes_of(adam.exp_avg_sq()) + std::to_string(adam.step());
    }
  }
  return bytes + std::to_string(amp.loss_scale());
}

inline void expect_equal_on_all(const World& world, const std::string& bytes, const std::string& what) {
  const auto all = world.all_gather_text(bytes);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    EXPECT_TRUE(all[rank] == all[0]) << what << ", rank " << rank;
  }
}

inline void expect_masters_round_to_parameters(const Amp& amp) {
  for (const auto& item : amp.masters()) {
    EXPECT_TRUE(at::equal(item.master.to(item.parameter.scalar_type()), item.parameter)) << item.name;
  }
}

/// One weight; this rank's gradient is `gradient`.
struct Scalar {
  struct Net : torch::nn::Module {
    at::Tensor w = register_parameter("w", at::ones({1}));
    at::Tensor forward(const at::Tensor& x) { return (w * x).sum(); }
  };
  std::shared_ptr<Net> net = std::make_shared<Net>();
  torch::optim::SGD optimizer{net->parameters(), 1.0};
  Amp amp;
  DistributedDataParallel<std::shared_ptr<Net>> ddp;

  Scalar(World& world, OptLevel level, const AmpOptions& options = {}, const DataParallelOptions& how = {})
      : amp(initialize(*net, optimizer, level, options)), ddp(net, world, how) {}
  void backward(float gradient) { amp.scale(amp.forward(ddp, at::full({1}, gradient))).backward(); }
  bool step() { return !amp.step(optimizer).skipped(); }
  float value() const { return net->w.item<float>(); }
};

}  // namespace lockstep::amp::testing
