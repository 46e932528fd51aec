// SPDX-License-Identifier: Apache-2.0
// One model under DistributedDataParallel at O2, trained by a TrainStep.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lockstep/amp/opt_level.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/step/train_step.h"
#include "models/gpt2.h"
#include "models/resnet50.h"
#include "models/small.h"
#include "support/weights.h"
#include "support/workload.h"

namespace lockstep::bench {
namespace {

/// A model without its type: the module and how its loss is computed.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> loss;
};

template <class Holder>
Model model_of(Holder holder) {
  return {holder.ptr(), [holder](const at::Tensor& x, const at::Tensor& y) mutable { return holder->forward(x, y); }};
}

Model make_model(const std::string& name) {
  if (name == "mlp") {
    return model_of(mlp());
  }
  if (name == "linear") {
    return model_of(linear());
  }
  if (name == "small") {
    return model_of(Gpt2(Gpt2Options{.vocabulary = 256, .context = 64, .layers = 42, .width = 64, .heads = 4}));
  }
  if (name == "gpt2") {
    return model_of(Gpt2());
  }
  if (name == "resnet50") {
    return model_of(ResNet50());
  }
  throw std::runtime_error("unknown workload: " + name);
}

TrainStep::Inputs make_batch(const Case& wanted, c10::Device device) {
  const auto floats = at::TensorOptions(device).dtype(at::kFloat);
  const auto whole = at::TensorOptions(device).dtype(at::kLong);
  const auto size = wanted.batch;
  if (wanted.workload == "mlp") {
    return {at::randn({size, 128}, floats), at::randn({size, 128}, floats)};
  }
  if (wanted.workload == "linear") {
    return {at::randn({size, 1024}, floats), at::randn({size, 16}, floats)};
  }
  if (wanted.workload == "resnet50") {
    const auto images = at::randn({size, 3, 224, 224}, floats);
    return {images.contiguous(at::MemoryFormat::ChannelsLast), at::randint(1000, {size}, whole)};
  }
  const bool large = wanted.workload == "gpt2";
  const std::int64_t vocabulary = large ? 50257 : 256, length = large ? 1024 : 64;
  return {at::randint(vocabulary, {size, length}, whole), at::randint(vocabulary, {size, length}, whole)};
}

/// Momentum and rates are those of peers/worker.py.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Case& wanted, const std::vector<at::Tensor>& parameters) {
  const optim::FusedOptions fused{.capturable = wanted.mode == "captured"};
  if (wanted.workload == "linear" || wanted.workload == "resnet50") {
    const double momentum = wanted.workload == "resnet50" ? 0.9 : 0.0;
    return std::make_unique<optim::SGD>(parameters, torch::optim::SGDOptions(0.01).momentum(momentum), fused);
  }
  return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-4), fused);
}

/// Convolutions in true fp32 while it lives: TF32 would hide a difference of a percent.
class ExactConvolutions {
 public:
  ExactConvolutions() : before_(at::globalContext().allowTF32CuDNN()) { at::globalContext().setAllowTF32CuDNN(false); }
  ExactConvolutions(const ExactConvolutions&) = delete;
  ExactConvolutions& operator=(const ExactConvolutions&) = delete;
  ~ExactConvolutions() { at::globalContext().setAllowTF32CuDNN(before_); }

 private:
  bool before_;
};

/// Loss and gradient norm in fp32 on the file's batch; the model's state is as in the file afterwards.
nlohmann::json check(const Model& model, const std::string& path, c10::Device device) {
  auto weights = read_weights(path);
  const auto x = weights.extract("check.input").mapped().to(device);
  const auto y = weights.extract("check.target").mapped().to(device);
  load_weights(*model.module, weights);
  const ExactConvolutions exact;
  const auto loss = model.loss(x, y);
  loss.backward();
  std::vector<at::Tensor> norms;
  for (const auto& parameter : model.module->parameters()) {
    norms.push_back(parameter.grad().norm());
  }
  load_weights(*model.module, weights);
  model.module->zero_grad();
  return {{"check_loss", loss.item<double>()}, {"check_grad_norm", at::stack(norms).norm().item<double>()}};
}

std::int64_t count(const torch::nn::Module& module) {
  std::int64_t sum = 0;
  for (const auto& parameter : module.parameters()) {
    sum += parameter.numel();
  }
  return sum;
}

World world_of(const Case& wanted) {
  WorldOptions options;
  if (wanted.device == "cpu") {
    options.device = c10::Device(c10::kCPU);
  }
  auto world = World::from_environment(options);
  TORCH_CHECK(wanted.device == "cpu" || !world.device().is_cpu(),
              "this build or this machine has no CUDA; give --device cpu");
  return world;
}

void to_channels_last(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) {
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
}

class Training : public Workload {
 public:
  explicit Training(const Case& wanted)
      : wanted_(wanted),
        world_(world_of(wanted)),
        device_(world_.device()),
        model_(prepared()),
        batch_(seeded_batch()),
        optimizer_(make_optimizer(wanted, model_.module->parameters())),
        amp_(amp::initialize(*model_.module, *optimizer_, amp::OptLevel::O2)),
        ddp_([module = model_.module] { return ddp::tensors_of(*module); }, world_),
        step_({.optimizer = *optimizer_, .ddp = &ddp_, .amp = &amp_}, loss(), step_options()) {}

  at::Tensor step() override {
    at::Tensor last;
    for (std::int64_t i = 0; i < wanted_.accumulate; ++i) {
      last = step_(batch_).loss();
    }
    return last;
  }

  c10::Device device() const override { return device_; }

  nlohmann::json describe() const override {
    auto facts = facts_;
    facts["what"] = c10::str("O2 ", device_.is_cuda() ? "fp16" : "bf16", " weights, fp32 masters; ",
                             ddp_.statistics().buckets, " buckets; ", step_.describe());
    return facts;
  }

 private:
  Model prepared() {
    auto model = make_model(wanted_.workload);
    model.module->to(device_);
    if (!wanted_.weights.empty()) {
      facts_ = check(model, wanted_.weights, device_);
    }
    facts_["parameters"] = count(*model.module);
    if (wanted_.workload == "resnet50") {
      to_channels_last(*model.module);
    }
    return model;
  }

  /// Ranks train on different batches.
  TrainStep::Inputs seeded_batch() const {
    at::manual_seed(static_cast<std::uint64_t>(world_.rank()));
    return make_batch(wanted_, device_);
  }

  TrainStep::Loss loss() {
    return [this](const TrainStep::Inputs& in) { return amp_.forward(model_.loss, in[0], in[1]); };
  }

  TrainStepOptions step_options() const {
    const bool clips = wanted_.workload == "gpt2" || wanted_.workload == "small";
    const bool captured = wanted_.mode == "captured";
    return {.accumulate = wanted_.accumulate,
            .clip_norm = clips ? 1.0 : 0.0,
            .capture = captured,
            .require_capture = captured};
  }

  Case wanted_;
  World world_;
  c10::Device device_;
  nlohmann::json facts_ = nlohmann::json::object();
  Model model_;
  TrainStep::Inputs batch_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  amp::Amp amp_;
  DataParallelBase ddp_;
  TrainStep step_;
};

}  // namespace

std::unique_ptr<Workload> make_training(const Case& wanted) {
  at::manual_seed(0);
  return std::make_unique<Training>(wanted);
}

}  // namespace lockstep::bench
