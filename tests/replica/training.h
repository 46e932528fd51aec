// SPDX-License-Identifier: Apache-2.0
// A training of every kind of state there is: bf16 parameters with fp32 masters, BatchNorm in fp32 with buffers, fused
// AdamW, a dynamic loss scale.
#pragma once

#include "lockstep/amp/opt_level.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/optim/adam.h"
#include "lockstep/replica/replica_check.h"
#include "replica/flip.h"
#include "support/models.h"
#include "support/ranks.h"

namespace lockstep::test {

inline torch::nn::Sequential model_with_buffers(std::uint64_t seed) {
  torch::nn::Sequential net(torch::nn::Linear(5, 7), torch::nn::BatchNorm1d(7), torch::nn::Tanh(),
                            torch::nn::Linear(7, 2));
  fill_parameters(net->parameters(), seed);
  return net;
}

inline torch::nn::Sequential on(c10::Device device, torch::nn::Sequential net) {
  net->to(device);
  return net;
}

class Training {
 public:
  Training(const World& world, const ReplicaCheckOptions& options, bool broadcast_buffers = true)
      : net_(on(world.device(), model_with_buffers(static_cast<std::uint64_t>(world.rank())))),
        optimizer_(net_->parameters(), torch::optim::AdamWOptions(0.01)),
        amp_(amp::initialize(*net_, optimizer_, amp::OptLevel::O2, {.low_precision = at::kBFloat16})),
        ddp_(net_, world, {.broadcast_buffers = broadcast_buffers}),
        check_(world, options),
        world_(world) {
    check_.attach(ddp_).attach(optimizer_).attach(amp_);
  }

  void backward() {
    const auto seed = 100 + 10 * static_cast<std::uint64_t>(batches_++) + static_cast<std::uint64_t>(world_.rank());
    amp_.scale(amp_.forward(ddp_, random({4, 5}, seed).to(world_.device())).square().mean()).backward();
  }

  void train() {
    backward();
    amp_.step(optimizer_);
  }

  /// A step on the same batch on all ranks, without communication: what ranks that are threads can do on one device,
  /// where autograd has one thread for all of them.
  void train_alike() {
    const auto quiet = ddp_.no_sync();
    const auto input = random({4, 5}, static_cast<std::uint64_t>(batches_++)).to(world_.device());
    amp_.scale(amp_.forward(ddp_, input).square().mean()).backward();
    amp_.step(optimizer_);
  }

  torch::nn::Sequential net_;
  optim::AdamW optimizer_;
  amp::Amp amp_;
  DistributedDataParallel<torch::nn::Sequential> ddp_;
  ReplicaCheck check_;

 private:
  World world_;
  int batches_ = 0;
};

/// A piece of state that can be harmed, by the kind and the name that a report should give it.
struct Victim {
  StateKind kind;
  std::string name;
  std::function<at::Tensor()> get;
  std::function<void(const at::Tensor&)> put = {};  // for values on the host
};

inline Victim live(StateKind kind, std::string name, at::Tensor tensor) {
  return {kind, std::move(name), [tensor] { return tensor; }};
}

inline void add_moments(std::vector<Victim>& victims, const std::string& name,
                        const torch::optim::OptimizerParamState& state) {
  const auto& adam = static_cast<const torch::optim::AdamWParamState&>(state);
  victims.push_back(live(StateKind::Moment, name + ".exp_avg", adam.exp_avg()));
  victims.push_back(live(StateKind::Moment, name + ".exp_avg_sq", adam.exp_avg_sq()));
}

/// One or more of each kind. After the first step, when everything has been made.
inline std::vector<Victim> victims_of(Training& training) {
  std::vector<Victim> victims;
  for (const auto& item : training.net_->named_parameters()) {
    victims.push_back(live(StateKind::Parameter, item.key(), item.value().detach()));
  }
  for (const auto& item : training.net_->named_buffers()) {
    victims.push_back(live(StateKind::Buffer, item.key(), item.value()));
  }
  for (const auto& item : training.amp_.masters()) {
    victims.push_back(live(StateKind::Master, item.name, item.master.detach()));
    add_moments(victims, item.name, *training.optimizer_.state().at(item.master.unsafeGetTensorImpl()));
  }
  for (const auto& [name, tensor] : training.amp_.scale_tensors()) {
    victims.push_back(live(StateKind::LossScale, name, tensor));
  }
  for (const auto& found : training.optimizer_.live_tensors()) {
    victims.push_back(live(StateKind::StepCount, "0.weight", found.tensor));
  }
  auto& options = training.optimizer_.param_groups()[0].options();
  victims.push_back({StateKind::LearningRate, "group 0",
                     [&options] { return at::scalar_tensor(options.get_lr(), at::kDouble); },
                     [&options](const at::Tensor& lr) { options.set_lr(lr.item<double>()); }});
  return victims;
}

inline void flip(const Victim& victim, std::int64_t flat, std::int64_t bit) {
  const auto tensor = victim.get();
  flip_bit(tensor, flat, bit);
  if (victim.put) {
    victim.put(tensor);
  }
}

inline void restore(const Victim& victim, const at::Tensor& value) {
  if (victim.put) {
    victim.put(value);
  } else {
    victim.get().copy_(value);
  }
}

}  // namespace lockstep::test
