// SPDX-License-Identifier: Apache-2.0
// Trials A: models that differ between ranks, or change after they were wrapped.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "ddp/trials.h"
#include "support/models.h"

namespace lockstep {
namespace {

using test::errors_on_each_rank;
using test::expect_on_all;
using test::random;
using torch::nn::Linear;
using torch::nn::Sequential;

struct TwoLayers : torch::nn::Module {
  explicit TwoLayers(bool swapped) {
    for (const auto* name : swapped ? std::array{"b", "a"} : std::array{"a", "b"}) {
      register_module(name, Linear(2, 2));
    }
  }
};

/// A model that is built differently by the odd rank, and what the error must say of it.
struct OddModel {
  std::string says;
  std::function<std::shared_ptr<torch::nn::Module>(bool odd)> build;
};

std::vector<OddModel> odd_models() {
  const auto cast = [](bool odd) {
    Linear net(2, 2);
    net->to(odd ? at::kDouble : at::kFloat);
    return net.ptr();
  };
  const auto frozen = [](bool odd) {
    Linear net(2, 2);
    net->bias.requires_grad_(!odd);
    return net.ptr();
  };
  return {
      {"1.weight",
       [](bool odd) { return (odd ? Sequential(Linear(2, 2)) : Sequential(Linear(2, 2), Linear(2, 2))).ptr(); }},
      {"weight: [3, 2]", [](bool odd) { return Linear(2, odd ? 3 : 2).ptr(); }},
      {"Double", cast},
      {"bias: [2] strides [1] Float not trainable", frozen},
      {"a.weight", [](bool odd) { return std::make_shared<TwoLayers>(odd); }},
  };
}

TEST(Trials, A1_models_that_differ_are_refused_on_every_rank_before_data_moves) {
  for (const auto& model : odd_models()) {
    for (const int ranks : {2, 3, 4}) {
      for (const int odd : {0, ranks - 1}) {
        SCOPED_TRACE(model.says + ", rank " + std::to_string(odd) + " of " + std::to_string(ranks) + " is the odd one");
        std::vector<std::string> texts(static_cast<std::size_t>(ranks));
        test::run(ranks, [&](World& world) {
          auto net = model.build(world.rank() == odd);
          test::fill_parameters(net->parameters(), static_cast<std::uint64_t>(world.rank()));
          const auto before = net->parameters()[0].clone();
          try {
            DistributedDataParallel(net, world);
          } catch (const InputError& error) {
            texts[static_cast<std::size_t>(world.rank())] = error.what();
          }
          EXPECT_TRUE(at::equal(net->parameters()[0], before));
        });
        EXPECT_EQ(texts, std::vector<std::string>(static_cast<std::size_t>(ranks), texts[0]));
        expect_on_all(texts, model.says);
      }
    }
  }
}

/// Conv weights row-major or channels last, a linear weight plain or transposed, a buffer likewise.
struct Strided {
  at::Tensor conv = random({8, 3, 3, 3}, 1);
  at::Tensor linear = random({4, 6}, 2);
  at::Tensor buffer = random({2, 3, 4, 4}, 3);

  Strided(int rank, bool odd_conv, bool odd_linear, bool odd_buffer) {
    for (auto* t : {&conv, &linear, &buffer}) {
      t->add_(rank);
    }
    conv = odd_conv ? conv.contiguous(at::MemoryFormat::ChannelsLast) : conv;
    linear = odd_linear ? linear.t().contiguous().t() : linear;
    buffer = odd_buffer ? buffer.contiguous(at::MemoryFormat::ChannelsLast) : buffer;
    conv.requires_grad_();
    linear.requires_grad_();
  }
  ModelTensors tensors() const { return test::named({conv, linear}, {buffer}); }
  void expect_values_of_rank_0() const {
    const Strided expected(0, false, false, false);
    EXPECT_TRUE(at::equal(conv, expected.conv));
    EXPECT_TRUE(at::equal(linear, expected.linear));
    EXPECT_TRUE(at::equal(buffer, expected.buffer));
  }
};

TEST(Trials, A2_channels_last_sender_row_major_receiver) {
  for (const int odd : {0, 1}) {
    for (int which = 0; which < 3; ++which) {
      test::run(2, [&](World& world) {
        const bool mine = world.rank() == odd;
        const Strided model(world.rank(), mine && which == 0, mine && which == 1, mine && which == 2);
        EXPECT_THROW(DataParallelBase(model.tensors(), world), InputError);
        // Without the comparison of models it is the broadcast that has to get it right.
        const auto strides = model.conv.strides().vec();
        const DataParallelBase ddp(model.tensors(), world, {.init_sync = false});
        ddp.broadcast_now();
        model.expect_values_of_rank_0();
        EXPECT_EQ(model.conv.strides().vec(), strides);
      });
    }
  }
}

TEST(Trials, A2_unusual_strides_on_every_rank_are_kept) {
  for (const int ranks : {1, 2, 3}) {
    test::run(ranks, [](World& world) {
      const Strided model(world.rank(), true, true, true);
      const DataParallelBase ddp(model.tensors(), world);
      model.expect_values_of_rank_0();
      EXPECT_TRUE(model.conv.is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_FALSE(model.linear.is_contiguous());
      (model.conv.sum() * world.rank() + (model.linear * model.linear.detach()).sum()).backward();
      EXPECT_TRUE(at::allclose(model.linear.grad(), model.linear));
      EXPECT_TRUE(at::allclose(model.conv.grad(), at::full_like(model.conv, (world.size() - 1) / 2.0)));
    });
  }
}

TEST(Trials, A4_empty_lists_of_parameters_and_buffers) {
  for (const int ranks : {1, 2}) {
    test::run(ranks, [](World& world) {
      const auto w = at::ones({2}).requires_grad_();
      const DataParallelBase without_buffers(test::named({w}), world);
      w.sum().backward();
      EXPECT_TRUE(at::equal(w.grad(), at::ones({2})));
    });
    const std::vector<ModelTensors> hopeless = {{}, test::named({}, {at::ones({2})}), test::named({at::ones({2})})};
    for (const auto& tensors : hopeless) {
      const auto texts = errors_on_each_rank(ranks, [&](World& world) { DataParallelBase(tensors, world); });
      expect_on_all(texts, "no parameter of the model requires a gradient");
    }
  }
}

/// Its forward changes a buffer: in place, by giving the registered tensor new memory (LibTorch has no other way to
/// rebind an entry of its registry), or by rebinding the member only.
struct ChangesItsBuffer : torch::nn::Module {
  enum class How { InPlace, NewMemory, MemberOnly };
  How way;
  at::Tensor weight = register_parameter("weight", at::ones({1}));
  at::Tensor count = register_buffer("count", at::zeros({1}));

  explicit ChangesItsBuffer(How how) : way(how) {}
  at::Tensor forward(double step) {
    const c10::NoGradGuard no_grad;
    if (way == How::InPlace) {
      count.add_(step);
    } else if (way == How::NewMemory) {
      count.set_data(count + step);
    } else {
      count = count + step;
    }
    const c10::AutoGradMode grad(true);
    return weight * 1;
  }
};

TEST(Trials, A5_a_buffer_that_forward_changes_follows_rank_0) {
  using How = ChangesItsBuffer::How;
  for (const auto how : {How::InPlace, How::NewMemory, How::MemberOnly}) {
    for (const int ranks : {1, 2, 3}) {
      test::run(ranks, [how](World& world) {
        const auto net = std::make_shared<ChangesItsBuffer>(how);
        DistributedDataParallel ddp(net, world);
        for (int step = 0; step < 2; ++step) {
          ddp.forward(world.rank() + 1.0).sum().backward();
        }
        // What the registry holds is what is kept equal; a member that parted from it is the model's own affair.
        const auto registered = net->named_buffers()["count"];
        EXPECT_EQ(registered.item<double>(), how == How::MemberOnly ? 0 : 2);
        EXPECT_EQ(ddp.difference(), "");
      });
    }
  }
}

/// One parameter of which a fresh copy can take the place, as loading by assignment does.
struct Replaceable : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::zeros({1}));
  void replace() { weight = parameters_["weight"] = weight.detach().clone().requires_grad_(); }
  at::Tensor forward(double gradient) { return weight * gradient; }
};

TEST(Trials, A6_a_replaced_parameter_is_an_error_at_the_next_forward) {
  for (const int ranks : {1, 2, 3}) {
    const auto texts = errors_on_each_rank(ranks, [](World& world) {
      const auto net = std::make_shared<Replaceable>();
      DistributedDataParallel ddp(net, world);
      ddp.forward(1.0).sum().backward();
      net->replace();
      ddp.forward(1.0 + world.rank()).sum().backward();
      ADD_FAILURE() << "rank " << world.rank() << " trained on without reduction";
    });
    expect_on_all(texts, "parameter weight was replaced");
  }
}

TEST(Trials, A6_there_and_back_again_keeps_averaging_also_with_the_old_optimizer) {
  for (const int ranks : {1, 2, 3}) {
    test::run(ranks, [](World& world) {
      auto net = Linear(1, 1);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1));
      DistributedDataParallel ddp(net, world);
      net->to(at::kDouble);
      net->to(at::kFloat);
      const auto before = net->weight.item<double>();
      (net->weight * (2.0 * world.rank()) + net->bias).sum().backward();
      sgd.step();
      EXPECT_NEAR(net->weight.item<double>(), before - (world.size() - 1), 1e-5);
      EXPECT_EQ(ddp.difference(), "");
    });
  }
}

TEST(Trials, A8_frozen_or_unfrozen_at_step_3_is_an_error_that_names_the_parameter) {
  for (const auto unused : {UnusedParameters::Error, UnusedParameters::Detect}) {
    for (const bool starts_frozen : {false, true}) {
      const auto texts = errors_on_each_rank(2, [&](World& world) {
        Sequential net(Linear(2, 2), Linear(2, 2));
        auto bias = net->parameters()[1].requires_grad_(!starts_frozen);
        DistributedDataParallel ddp(net, world, {.unused = unused});
        for (int step = 0; step < 5; ++step) {
          if (step == 3) {
            bias.requires_grad_(starts_frozen);
          }
          net->zero_grad();
          ddp.forward(random({2, 2}, static_cast<std::uint64_t>(world.rank()))).sum().backward();
          EXPECT_LT(step, 3);
        }
      });
      expect_on_all(texts, "parameter 0.bias was replaced, frozen, unfrozen");
    }
  }
}

/// A model whose training goes through a method that the wrapper does not know.
struct Policy : torch::nn::Module {
  Linear layer = register_module("layer", Linear(1, 1));
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x); }
  at::Tensor score(double gradient) { return layer->weight * gradient + layer->bias; }
};

TEST(Trials, A9_another_method_of_the_inner_module_is_reduced_as_well) {
  for (const int ranks : {1, 2, 3, 4}) {
    test::run(ranks, [](World& world) {
      const auto net = std::make_shared<Policy>();
      DistributedDataParallel ddp(net, world);
      net->score(2.0 * world.rank() + 1).sum().backward();
      EXPECT_NEAR(net->layer->weight.grad().item<float>(), world.size(), 1e-6) << "the mean of 1, 3, 5, ...";
      net->zero_grad();
      ddp->score(2.0 * world.rank() + 1).sum().backward();
      EXPECT_NEAR(net->layer->weight.grad().item<float>(), world.size(), 1e-6);
    });
  }
}

}  // namespace
}  // namespace lockstep
