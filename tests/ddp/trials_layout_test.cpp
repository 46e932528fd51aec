// SPDX-License-Identifier: Apache-2.0
// Trials C: what `.grad` is, which dtype and shape it has, and who else holds it.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include "ddp/trials.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::random;

/// The ways in which programs clear gradients between steps.
void clear_gradients(int way, torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  if (way == 0 || way == 1) {
    optimizer.zero_grad(/*set_to_none=*/way == 0);
    return;
  }
  for (const auto& p : parameters) {
    if (way == 2 && p.grad().defined()) {
      p.mutable_grad() = at::zeros_like(p.grad());  // assigns a fresh one
    } else if (p.grad().defined()) {
      p.mutable_grad().detach_().zero_();
    }
  }
}

TEST(Trials, C2_every_way_of_clearing_gradients_equals_one_process) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& options : test::tiny_and_huge_buckets()) {
      const auto input = [&](int step) { return random({2 * ranks, 6}, static_cast<std::uint64_t>(step)); };
      auto alone = test::mlp(5);
      torch::optim::SGD reference(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      test::run(ranks, [&](World& world) {
        auto net = test::mlp(5 + static_cast<std::uint64_t>(world.rank()));
        DistributedDataParallel ddp(net, world, options);
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        std::vector<at::Tensor> kept;
        for (int step = 0; step < 8; ++step) {
          clear_gradients(step % 4, sgd, net->parameters());
          ddp(test::share(input(step), world.rank(), 2)).square().mean().backward();
          const auto& first = net->parameters()[0].grad().storage();
          EXPECT_EQ(first.is_alias_of(net->parameters()[5].grad().storage()), ranks > 1);
          kept.push_back(net->parameters()[5].grad().detach().clone());
          sgd.step();
          EXPECT_EQ(ddp.difference(), "") << step;
        }
        if (world.rank() == 0) {
          for (int step = 0; step < 8; ++step) {
            reference.zero_grad();
            alone->forward(input(step)).square().mean().backward();
            const at::Tensor bias = alone->parameters()[5].grad();
            EXPECT_TRUE(at::allclose(kept[static_cast<std::size_t>(step)], bias, 1e-5, 1e-6)) << step;
            reference.step();
          }
        }
      });
    }
  }
}

TEST(Trials, C2_a_handle_kept_over_several_steps_never_changes) {
  for (const int ranks : {1, 2}) {
    test::run(ranks, [](World& world) {
      const auto w = at::zeros({3}).requires_grad_();
      const DataParallelBase ddp(test::named({w}), world);
      std::vector<at::Tensor> kept;
      for (int step = 0; step < 4; ++step) {
        w.mutable_grad() = at::Tensor();
        (w * (step + world.rank())).sum().backward();
        kept.push_back(w.grad());
      }
      for (int step = 0; step < 4; ++step) {
        const auto expected = at::full({3}, step + (world.size() - 1) / 2.0);
        EXPECT_TRUE(at::equal(kept[static_cast<std::size_t>(step)], expected)) << step;
      }
    });
  }
}

TEST(Trials, C4_a_sparse_embedding_of_which_one_rank_sees_only_padding) {
  for (const bool nobody_has_rows : {false, true}) {
    for (const int ranks : {1, 2, 3}) {
      test::run(ranks, [&](World& world) {
        torch::nn::Embedding net(torch::nn::EmbeddingOptions(4, 2).padding_idx(0).sparse(true));
        DistributedDataParallel ddp(net, world);
        const bool padding = nobody_has_rows || world.rank() == 0;
        for (int step = 0; step < 2; ++step) {
          net->zero_grad();
          ddp(padding ? at::tensor({0, 0}, at::kLong) : at::tensor({1, 1, 2, 0}, at::kLong)).sum().backward();
          const double share = nobody_has_rows ? 0 : (world.size() - 1.0) / world.size();
          auto expected = at::zeros({4, 2});
          expected[1].fill_(2 * share);
          expected[2].fill_(share);
          EXPECT_TRUE(at::allclose(net->weight.grad().to_dense(), expected)) << net->weight.grad();
        }
      });
    }
  }
}

/// Gradient of `p` is `g`: the loss is the real part of the product with its conjugate.
at::Tensor loss_with_gradient(const at::Tensor& p, c10::complex<float> g) {
  return at::real(p * at::full({1}, std::conj(g))).sum();
}

TEST(Trials, C5_complex_and_real_parameters_in_one_model_also_under_a_hook) {
  for (const bool hooked : {false, true}) {
    for (const auto& options : test::tiny_and_huge_buckets()) {
      test::run(2, [&](World& world) {
        const auto z = at::zeros({2}, at::kComplexFloat).requires_grad_();
        const auto x = at::zeros({3}).requires_grad_();
        DataParallelBase ddp(test::named({z, x}), world, options);
        if (hooked) {
          ddp.register_comm_hook(compress_hook(world, at::kHalf));
        }
        const auto g = world.rank() == 0 ? c10::complex<float>(1, 2) : c10::complex<float>(3, -4);
        (loss_with_gradient(z, g) + (x * (1.0 + world.rank())).sum()).backward();
        EXPECT_TRUE(at::equal(z.grad(), at::full({2}, c10::complex<float>(2, -1)))) << z.grad();
        EXPECT_TRUE(at::equal(x.grad(), at::full({3}, 1.5)));
        EXPECT_EQ(ddp.statistics().buckets, 2) << ddp.describe();
      });
    }
  }
}

TEST(Trials, C6_dtypes_share_no_bucket_and_empty_parameters_stall_none) {
  for (const int ranks : {1, 2, 4}) {
    for (const auto& options : test::tiny_and_huge_buckets()) {
      test::run(ranks, [&](World& world) {
        const std::vector<at::Tensor> parameters = {at::zeros({3, 2}, at::kBFloat16).requires_grad_(),
                                                    at::zeros({}).requires_grad_(), at::zeros({0, 4}).requires_grad_(),
                                                    at::zeros({5}, at::kHalf).requires_grad_(),
                                                    at::zeros({2}, at::kFloat).requires_grad_()};
        const DataParallelBase ddp(test::named(parameters), world, options);
        EXPECT_GE(ddp.statistics().buckets, 3);
        for (int step = 0; step < 3; ++step) {
          test::forget_gradients(parameters);
          auto loss = at::zeros({});
          for (const auto& p : parameters) {
            loss = loss + (p * (2.0 * world.rank())).to(at::kFloat).sum();
          }
          loss.backward();
          for (const auto& p : parameters) {
            EXPECT_EQ(p.grad().scalar_type(), p.scalar_type());
            EXPECT_TRUE(at::equal(p.grad(), at::full_like(p, world.size() - 1)));
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace lockstep
