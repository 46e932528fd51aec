// SPDX-License-Identifier: Apache-2.0
// 2,000 steps in which everything that can be combined is, at random: windows under no_sync, unused parameters that
// differ between ranks, communication hooks, uneven inputs, overflows on one rank, opt levels with and without masters.
// One driver, the same on all ranks, draws for all of them. Every few steps parameters, buffers, masters, moments and
// the loss scale must have equal bits everywhere.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <optional>
#include <random>

#include "lockstep/amp/opt_level.h"
#include "lockstep/comm/launch.h"
#include "lockstep/ddp/join.h"
#include "lockstep/replica/replica_check.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/replicas.h"

namespace lockstep::soak {
namespace {

constexpr int kRanks = 3;
constexpr int kSteps = 2000;
constexpr int kStepsPerLife = 50;

struct BranchesImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(4, 6));
  torch::nn::Linear left = register_module("left", torch::nn::Linear(6, 6));
  torch::nn::Linear right = register_module("right", torch::nn::Linear(6, 6));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(6, 2));

  at::Tensor forward(const at::Tensor& x, bool uses_left, bool uses_right) {
    auto h = at::tanh(in(x));
    h = uses_left ? h + at::tanh(left(h)) : h;
    h = uses_right ? h + at::tanh(right(h)) : h;
    return out(norm(h));
  }
};

class Driver {
 public:
  explicit Driver(std::uint64_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
  bool one_in(int n) { return below(n) == 0; }
  /// One number for each rank.
  std::vector<int> each_below(int n) {
    std::vector<int> numbers(kRanks);
    std::generate(numbers.begin(), numbers.end(), [&] { return below(n); });
    return numbers;
  }

 private:
  std::mt19937_64 engine_;
};

CommHook draw_hook(Driver& driver, const World& world) {
  switch (driver.below(5)) {
    case 0:
      return compress_hook(world, at::kHalf);
    case 1:
      return compress_hook(world, at::kBFloat16);
    case 2:
      return float_reduction_hook(world);
    case 3:
      return power_sgd_hook(world, {.matrix_approximation_rank = 2,
                                    .start_step = static_cast<std::uint32_t>(driver.below(20)),
                                    .min_compression_rate = 0.1,
                                    .warm_start = driver.one_in(2)});
    default:
      return nullptr;
  }
}

DataParallelOptions draw_options(Driver& driver) {
  const double mib = driver.one_in(2) ? 3e-4 : 1;  // four buckets, or one
  return {.unused = UnusedParameters::Detect,
          .bucket_cap_mb = mib,
          .first_bucket_mb = mib,
          .overlap = !driver.one_in(4),
          .gradient_predivide_factor = driver.one_in(3) ? 1.5 : 0.0};
}

/// What the soak has really done, so that a change of the odds cannot empty it.
struct Tally {
  int skipped = 0;
  int joins = 0;
  DataParallelStatistics ddp;
};

/// One model from its wrapping to its end, under one opt level and one hook.
class Life {
 public:
  Life(World& world, Driver& driver, Tally& tally, bool hashes_gradients)
      : world_(world),
        driver_(driver),
        tally_(tally),
        adam_(net_.parameters(), torch::optim::AdamOptions(1e-3)),
        amp_(amp::initialize(net_, adam_, static_cast<amp::OptLevel>(driver.below(3)),
                             {.loss_scale = amp::LossScale("dynamic")})),
        ddp_(net_, world, draw_options(driver)),
        check_(world, {.gradients = hashes_gradients}) {
    check_.attach(ddp_).attach(adam_).attach(amp_);
    if (auto hook = draw_hook(driver, world)) {
      ddp_.register_comm_hook(std::move(hook));
    }
  }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;
  ~Life() {
    const auto lived = ddp_.statistics();
    tally_.ddp.quiet_backwards += lived.quiet_backwards;
    tally_.ddp.reduced_backwards += lived.reduced_backwards;
    tally_.ddp.shadowed_backwards += lived.shadowed_backwards;
  }

  void step() { driver_.one_in(10) ? uneven_epoch() : window(); }

  void expect_equal_replicas(int step) {
    EXPECT_TRUE(test::same_on_all_ranks(world_, state())) << "step " << step << ", " << amp_.describe();
    check_.compare();
    EXPECT_NO_THROW(check_.verdict()) << "step " << step;
    EXPECT_TRUE(net_.in->weight.isfinite().all().item<bool>()) << step;
  }

 private:
  /// What every rank does in one backward pass: drawn for all ranks, the own share is returned.
  struct Pass {
    int data;
    bool uses_left;
    bool uses_right;
    bool overflows;
  };

  Pass draw_pass() {
    const auto data = driver_.each_below(1000);
    const auto left = driver_.each_below(2);
    const auto right = driver_.each_below(3);
    const int overflow = driver_.one_in(20) ? driver_.below(kRanks) : -1;
    const auto me = static_cast<std::size_t>(world_.rank());
    return {data[me], left[me] == 0, right[me] == 0, overflow == world_.rank()};
  }

  void backward(const Pass& pass) {
    const auto x = test::random({3, 4}, static_cast<std::uint64_t>(pass.data));
    const auto y =
        amp_.forward([&](const at::Tensor& input) { return net_.forward(input, pass.uses_left, pass.uses_right); }, x);
    const double factor = pass.overflows ? std::numeric_limits<double>::infinity() : 1.0;
    amp_.scale(y.square().mean() * factor).backward();
  }

  void update() { tally_.skipped += amp_.step(adam_).skipped() ? 1 : 0; }

  void window() {
    const int passes = 1 + driver_.below(3);
    for (int i = 0; i < passes; ++i) {
      std::optional<DataParallelBase::NoSync> quiet;
      if (i + 1 < passes) {
        quiet.emplace(ddp_.no_sync());
      }
      backward(draw_pass());
    }
    update();
  }

  /// Windows of one or two passes; a rank may end within one, or have no inputs at all.
  void uneven_epoch() {
    ++tally_.joins;
    const auto inputs = driver_.each_below(5);
    const int window = 1 + driver_.below(2);
    const auto divisor = driver_.one_in(2) ? JoinDivisor::Initial : JoinDivisor::Live;
    std::vector<Pass> passes;
    for (int i = 0; i < 5; ++i) {
      passes.push_back(draw_pass());
    }
    const auto body = [&] {
      for (int i = 0; i < inputs[static_cast<std::size_t>(world_.rank())]; ++i) {
        std::optional<DataParallelBase::NoSync> quiet;
        if (i % window + 1 < window) {
          quiet.emplace(ddp_.no_sync());
        }
        backward(passes[static_cast<std::size_t>(i)]);
        if (!quiet) {
          update();
        }
      }
    };
    const auto shadow_step = [&] {
      amp_.scale(at::zeros({1}));
      update();
    };
    join(ddp_, body, shadow_step, {.divisor = divisor});
    amp_.zero_grad();  // an unfinished window is dropped
  }

  std::vector<at::Tensor> state() {
    auto tensors = net_.parameters();
    const auto buffers = net_.buffers();
    tensors.insert(tensors.end(), buffers.begin(), buffers.end());
    for (const auto& master : amp_.masters()) {
      tensors.push_back(master.master);
    }
    for (const auto& parameter : adam_.param_groups()[0].params()) {
      const auto found = adam_.state().find(parameter.unsafeGetTensorImpl());
      if (found != adam_.state().end()) {
        const auto& moments = static_cast<const torch::optim::AdamParamState&>(*found->second);
        tensors.push_back(moments.exp_avg());
        tensors.push_back(moments.exp_avg_sq());
        tensors.push_back(at::full({1}, moments.step(), at::kLong));
      }
    }
    if (amp_.scale_tensor().defined()) {
      tensors.push_back(amp_.scale_tensor());
    }
    return tensors;
  }

  World& world_;
  Driver& driver_;
  Tally& tally_;
  BranchesImpl net_;
  torch::optim::Adam adam_;
  amp::Amp amp_;
  DistributedDataParallel<BranchesImpl> ddp_;
  ReplicaCheck check_;
};

TEST(Soak, ranks_stay_bitwise_equal_over_2000_steps_of_everything_at_once) {
  test::run(kRanks, [](World& world) {
    Driver driver(20);
    Tally tally;
    for (int start = 0; start < kSteps; start += kStepsPerLife) {
      Life life(world, driver, tally, start / kStepsPerLife % 2 == 0);
      for (int step = start; step < start + kStepsPerLife; ++step) {
        life.step();
        if (step % 10 == 9) {
          life.expect_equal_replicas(step);
        }
      }
    }
    EXPECT_GT(tally.skipped, 50);
    EXPECT_GT(tally.joins, 100);
    EXPECT_GT(tally.ddp.quiet_backwards, 1000U);
    EXPECT_GT(tally.ddp.reduced_backwards, 1500U);
    EXPECT_GT(tally.ddp.shadowed_backwards, 50U);
  });
}

}  // namespace
}  // namespace lockstep::soak
