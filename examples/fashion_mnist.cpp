// SPDX-License-Identifier: Apache-2.0
// Trains a small convolutional network on Fashion-MNIST, in mixed precision, on any number of ranks.
//
//   $ lockstep run -n 2 fashion_mnist
//   [0] epoch 1/3 47/469 loss 0.9268
//   ...
//   [0] epoch 3: loss 0.2272, test loss 0.2725, test accuracy 90.0 %, 5192 images/s
//   [0] rank 0: digest 3413661778db3c60
//   [0] rank 1: digest 3413661778db3c60
//   [0] RESULT accuracy=0.9004 loss=0.2725 images_per_s=5069 ranks=2 digests_equal=true
#include <ATen/ATen.h>
#include <lockstep/amp/opt_level.h>
#include <lockstep/comm/launch.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/ddp/data_parallel.h>
#include <lockstep/optim/adam.h>
#include <lockstep/optim/lr_schedule.h>
#include <lockstep/replica/replica_check.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "support/arguments.h"
#include "support/fashion_mnist.h"
#include "support/output.h"
#include "support/progress.h"

namespace nn = torch::nn;
using examples::FashionMnist;
using lockstep::data::DistributedSampler;

namespace {

struct Settings {
  int epochs = 3;
  std::size_t batch = 128;
  double lr = 4e-3;
  lockstep::amp::OptLevel opt_level = lockstep::amp::OptLevel::O2;
  std::uint64_t seed = 0;
  std::string data = examples::kFashionMnistFolder;
  std::size_t samples = 0;
};

struct NetImpl : nn::Module {
  nn::Conv2d conv1{nn::Conv2dOptions(1, 16, 5).stride(2).padding(2)};
  nn::Conv2d conv2{nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)};
  nn::Linear hidden{32 * 7 * 7, 64};
  nn::Linear output{64, 10};

  NetImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("hidden", hidden);
    register_module("output", output);
  }

  /// float [n, 1, 28, 28] to class scores [n, 10].
  at::Tensor forward(at::Tensor x) {
    x = at::relu(conv1->forward(x));
    x = at::relu(conv2->forward(x));
    x = at::relu(hidden->forward(x.flatten(1)));
    return output->forward(x);
  }
};
TORCH_MODULE(Net);

/// Sums over samples, kept on the device: reading them once an epoch leaves the device free to run ahead.
struct Totals {
  at::Tensor sums;  // fp64: loss, right answers, samples

  explicit Totals(c10::Device device) : sums(at::zeros({3}, at::TensorOptions(device).dtype(at::kDouble))) {}

  void add(const at::Tensor& loss, const at::Tensor& scores, const at::Tensor& labels) {
    const auto count = static_cast<double>(labels.size(0));
    sums[0] += loss.detach().to(at::kDouble) * count;
    sums[1] += scores.argmax(1).eq(labels).sum();
    sums[2] += count;
  }
  /// Ranks may have seen different numbers of samples, so sums are added, not averages.
  void add_ranks(const lockstep::World& world) {
    world.all_reduce(sums, lockstep::ReduceOp::Sum, {.name = "totals"}).wait();
    sums = sums.to(at::kCPU);
  }
  double loss() const { return sums[0].item<double>() / samples(); }
  double accuracy() const { return sums[1].item<double>() / samples(); }
  double samples() const { return sums[2].item<double>(); }
};

class Trainer {
 public:
  Trainer(const lockstep::World& world, const Settings& settings);

  void run();

 private:
  Totals train(int epoch);
  Totals test();
  void report(double images_per_s, const Totals& tested) const;

  lockstep::World world_;
  Settings settings_;
  FashionMnist train_data_;
  FashionMnist test_data_;
  DistributedSampler train_sampler_;
  DistributedSampler test_sampler_;
  Net net_;
  lockstep::optim::AdamW optimizer_;
  lockstep::amp::Amp amp_;
  lockstep::DistributedDataParallel<Net> ddp_;
  std::size_t batch_;   // of one rank
  std::int64_t steps_;  // of one epoch
  std::int64_t batches_ = 0;
  lockstep::optim::LrScheduler schedule_;  // by batches seen, skipped steps among them
  lockstep::ReplicaCheck check_;           // weights, masters, moments and loss scale are equal on all ranks
};

Net make_net(const lockstep::World& world, std::uint64_t seed) {
  // Each rank draws its own weights. That is harmless: wrapping copies rank 0's to all.
  at::manual_seed(seed + static_cast<std::uint64_t>(world.rank()));
  Net net;
  net->to(world.device());
  return net;
}

Trainer::Trainer(const lockstep::World& world, const Settings& settings)
    : world_(world),
      settings_(settings),
      train_data_(settings.data, FashionMnist::Part::Train, settings.samples),
      test_data_(settings.data, FashionMnist::Part::Test, settings.samples),
      train_sampler_(train_data_.size(), world, {.seed = settings.seed}),
      // Padding would count some test images twice.
      test_sampler_(test_data_.size(), world, {.shuffle = false, .pad = false}),
      net_(make_net(world, settings.seed)),
      optimizer_(net_->parameters(), torch::optim::AdamWOptions(settings.lr)),
      amp_(lockstep::amp::initialize(*net_, optimizer_, settings.opt_level)),
      ddp_(net_, world),
      batch_(std::max<std::size_t>(settings.batch / static_cast<std::size_t>(world.size()), 1)),
      steps_(static_cast<std::int64_t>((train_sampler_.size() + batch_ - 1) / batch_)),
      schedule_(optimizer_, lockstep::optim::polynomial_lr(steps_ * settings.epochs)),
      check_(world, {.every = 100}) {
  check_.attach(ddp_).attach(optimizer_).attach(amp_);
}

Totals Trainer::train(int epoch) {
  train_sampler_.set_epoch(static_cast<std::uint64_t>(epoch));
  const auto name = "epoch " + std::to_string(epoch + 1) + "/" + std::to_string(settings_.epochs);
  examples::Progress progress(name, steps_, examples::Progress::style_for(world_.rank()));
  Totals totals(world_.device());
  while (const auto indices = train_sampler_.next(batch_)) {
    const auto [images, labels] = train_data_.batch(*indices, world_.device());
    const auto scores = amp_.forward(ddp_, images);
    const auto loss = at::cross_entropy_loss(scores, labels);
    amp_.scale(loss).backward();  // gradients are averaged over all ranks while this runs
    amp_.step(optimizer_);
    schedule_.step_to(++batches_);
    check_.step();

    totals.add(loss, scores, labels);
    progress.step([&] { return "loss " + examples::decimal(totals.loss(), 4); });
  }
  totals.add_ranks(world_);
  return totals;
}

Totals Trainer::test() {
  const at::NoGradGuard no_grad;
  Totals totals(world_.device());
  test_sampler_.set_epoch(0);
  while (const auto indices = test_sampler_.next(500)) {
    const auto [images, labels] = test_data_.batch(*indices, world_.device());
    const auto scores = amp_.forward(net_, images);
    totals.add(at::cross_entropy_loss(scores, labels), scores, labels);
  }
  totals.add_ranks(world_);
  return totals;
}

void Trainer::run() {
  using Clock = std::chrono::steady_clock;
  double seconds = 0;
  double images = 0;
  for (int epoch = 0; epoch < settings_.epochs; ++epoch) {
    const auto start = Clock::now();
    const auto trained = train(epoch);
    const double epoch_seconds = std::chrono::duration<double>(Clock::now() - start).count();
    seconds += epoch_seconds;
    images += trained.samples();
    const auto tested = test();
    if (world_.rank() == 0) {
      std::printf("epoch %d: loss %.4f, test loss %.4f, test accuracy %.1f %%, %.0f images/s\n", epoch + 1,
                  trained.loss(), tested.loss(), 100 * tested.accuracy(), trained.samples() / epoch_seconds);
      std::fflush(stdout);
    }
    if (epoch + 1 == settings_.epochs) {
      report(images / seconds, tested);
    }
  }
}

void Trainer::report(double images_per_s, const Totals& tested) const {
  const auto digests = world_.all_gather_text("digest " + examples::hex(ddp_.digest()));
  if (world_.rank() == 0) {
    examples::print_by_rank(digests);
    std::printf("RESULT accuracy=%.4f loss=%.4f images_per_s=%.0f ranks=%d digests_equal=%s\n", tested.accuracy(),
                tested.loss(), images_per_s, world_.size(), examples::all_equal(digests) ? "true" : "false");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Trains a small convolutional network on Fashion-MNIST, on any number of ranks.");
  app.option_defaults()->always_capture_default();
  app.add_option("--epochs", settings.epochs, "passes over the training images")->check(CLI::PositiveNumber);
  app.add_option("--batch", settings.batch, "images a step, of all ranks together")->check(CLI::PositiveNumber);
  app.add_option("--lr", settings.lr, "learning rate of the first step; it falls linearly to 0");
  app.add_option("--seed", settings.seed, "for weights and order");
  app.add_option("--data", settings.data, "folder with the four idx files, gzipped or plain");
  app.add_option("--samples", settings.samples, "use only the first so many images of each part; 0: all");
  examples::add_opt_level(app, settings.opt_level);
  if (const auto code = examples::parse(app, argc, argv)) {
    return *code;
  }
  return lockstep::run_main([&](lockstep::World& world) { Trainer(world, settings).run(); });
}
