// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "nn/nn_testing.h"

namespace lockstep {
namespace {

using nn::convert_sync_batch_norm;
using test::input_error;
using test::mentions;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNormOptions;
using torch::nn::Linear;
using torch::nn::Sequential;

nn::SyncBatchNormImpl& sync_at(torch::nn::Module& module, const std::string& path) {
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (item.key() == path) {
      return dynamic_cast<nn::SyncBatchNormImpl&>(*item.value());
    }
  }
  throw InputError("no module " + path);
}

std::vector<const void*> identities(const torch::nn::Module& module) {
  std::vector<const void*> list;
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const auto& tensor : tensors) {
      list.push_back(tensor.unsafeGetTensorImpl());
    }
  }
  return list;
}

struct Block : torch::nn::Module {
  Sequential body = register_module(
      "body", Sequential(BatchNorm1d(BatchNormOptions(4).momentum(std::nullopt).eps(0.2)), Linear(4, 3)));
  at::Tensor forward(const at::Tensor& x) { return body->forward(x); }
};

// The BatchNorms must be the containers' alone, so they are made in place.
Sequential nested() {
  return Sequential(Linear(5, 4), std::make_shared<Block>(), BatchNorm1d(BatchNormOptions(3).affine(false)),
                    BatchNorm1d(BatchNormOptions(3).track_running_stats(false)));
}

TEST(ConvertSyncBatchNorm, replaces_in_nested_sequentials_and_keeps_tensors_and_options) {
  auto net = nested();
  const auto before = identities(*net);
  const auto names = net->named_parameters().keys();
  EXPECT_EQ(convert_sync_batch_norm(net, World()), 3);
  EXPECT_EQ(identities(*net), before);
  EXPECT_EQ(net->named_parameters().keys(), names);
  const auto& first = sync_at(*net, "1.body.0").options;
  EXPECT_TRUE(!first.momentum() && first.eps() == 0.2 && first.affine() && first.track_running_stats());
  EXPECT_FALSE(sync_at(*net, "2").weight.defined());
  EXPECT_FALSE(sync_at(*net, "3").running_mean.defined());
  EXPECT_EQ(net->forward(test::random({6, 5}, 1)).sizes(), (test::Sizes{6, 3}));
}

TEST(ConvertSyncBatchNorm, keeps_flags_dtype_and_requires_grad) {
  Sequential net(BatchNorm2d(4), BatchNorm2d(4));
  net->to(at::kDouble);
  net->children()[0]->eval();
  for (auto& parameter : net->children()[1]->parameters()) {
    parameter.requires_grad_(false);
  }
  EXPECT_EQ(convert_sync_batch_norm(net, World(), {.skip_non_finite = false}), 2);
  auto &frozen = sync_at(*net, "0"), &fixed = sync_at(*net, "1");
  EXPECT_TRUE(!frozen.is_training() && frozen.weight.requires_grad() && frozen.weight.scalar_type() == at::kDouble);
  EXPECT_TRUE(fixed.is_training() && !fixed.weight.requires_grad() && !fixed.bias.requires_grad());
  EXPECT_FALSE(fixed.options.skip_non_finite());
}

struct WithContainers : torch::nn::Module {
  torch::nn::ModuleList list;
  torch::nn::ModuleDict dict;
  Sequential norm{BatchNorm1d(3)};

  WithContainers() {
    list->push_back(BatchNorm1d(3));
    list->push_back(Linear(3, 3));
    dict->update({{"a", BatchNorm1d(3).ptr()}, {"b", Linear(3, 3).ptr()}});
    register_module("list", list);
    register_module("dict", dict);
    register_module("norm", norm);
    register_module("registered", std::make_shared<torch::nn::BatchNorm1dImpl>(3));
  }
};

TEST(ConvertSyncBatchNorm, reaches_every_container_and_the_registry) {
  WithContainers net;
  EXPECT_EQ(convert_sync_batch_norm(net, World()), 4);
  EXPECT_TRUE(std::dynamic_pointer_cast<nn::SyncBatchNormImpl>(net.list[0]));
  EXPECT_TRUE(std::dynamic_pointer_cast<nn::SyncBatchNormImpl>(net.dict["a"]));
  EXPECT_EQ(net.norm->at<nn::SyncBatchNormImpl>(0).options.num_features(), 3);
  EXPECT_EQ(sync_at(net, "list.0").weight.unsafeGetTensorImpl(), net.list[0]->parameters()[0].unsafeGetTensorImpl());
  EXPECT_EQ(sync_at(net, "registered").options.num_features(), 3);
  EXPECT_EQ(convert_sync_batch_norm(net, World()), 4);  // again: they are given the world
}

struct WithMember : torch::nn::Module {
  Linear linear = register_module("linear", Linear(3, 3));
  BatchNorm1d norm = register_module("norm", BatchNorm1d(3));
};

struct WithSyncMember : torch::nn::Module {
  Linear linear = register_module("linear", Linear(3, 4));
  nn::SyncBatchNorm norm = register_module("norm", nn::SyncBatchNorm(4));
  Sequential tail = register_module("tail", Sequential(BatchNorm1d(4), Linear(4, 2)));
  at::Tensor forward(const at::Tensor& x) { return tail->forward(norm->forward(linear->forward(x))); }
};

TEST(ConvertSyncBatchNorm, a_member_that_would_go_on_with_batch_norm_is_refused_and_nothing_changes) {
  auto member = std::make_shared<WithMember>();
  Sequential net(BatchNorm1d(3), torch::nn::Linear(3, 3));
  net->register_module("member", std::static_pointer_cast<torch::nn::Module>(member));
  const auto error = input_error([&] { convert_sync_batch_norm(net, World()); });
  EXPECT_TRUE(mentions(error, "'member.norm' is held by a member or variable")) << error;
  EXPECT_TRUE(mentions(error, "lockstep::nn::SyncBatchNorm")) << error;
  EXPECT_TRUE(std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(net->ptr(0)));
  BatchNorm1d handle(3);
  Sequential other(handle);
  EXPECT_TRUE(mentions(input_error([&] { convert_sync_batch_norm(other, World()); }), "'0' is held"));
}

struct Own : torch::nn::BatchNorm1dImpl {
  using BatchNorm1dImpl::BatchNorm1dImpl;
};

TEST(ConvertSyncBatchNorm, derived_classes_and_a_bare_batch_norm_are_refused) {
  Sequential net(std::make_shared<Own>(3));
  EXPECT_TRUE(mentions(input_error([&] { convert_sync_batch_norm(net, World()); }), "'0' is of a class derived"));
  BatchNorm1d bare(3);
  EXPECT_TRUE(mentions(input_error([&] { convert_sync_batch_norm(bare, World()); }), "is a BatchNorm itself"));
  EXPECT_EQ(convert_sync_batch_norm(*Linear(3, 3), World()), 0);
}

TEST(ConvertSyncBatchNorm, a_module_in_two_places_stays_one) {
  auto shared = std::make_shared<torch::nn::BatchNorm1dImpl>(3);
  Sequential net(Linear(3, 3), shared, Linear(3, 3), shared);
  shared.reset();
  EXPECT_EQ(convert_sync_batch_norm(net, World()), 1);
  EXPECT_EQ(net->ptr(1), net->ptr(3));
}

TEST(ConvertSyncBatchNorm, binds_members_and_trains_as_on_the_joined_batch_with_an_optimizer_made_before) {
  const auto joined = test::random({6, 3}, 3), dy = test::random({6, 2}, 4);
  const auto step = [](WithSyncMember& net, torch::optim::SGD& optimizer, const at::Tensor& x, const at::Tensor& grad,
                       const World& world) {
    net.forward(x).backward(grad);
    for (const auto& parameter : net.parameters()) {
      world.all_reduce(parameter.grad()).wait();
    }
    optimizer.step();
  };
  WithSyncMember whole;
  test::fill_parameters(whole.parameters(), 1);
  torch::optim::SGD optimizer(whole.parameters(), 0.1);
  step(whole, optimizer, joined, dy, World());
  test::run(3, [&](World& world) {
    auto net = std::make_shared<WithSyncMember>();
    test::fill_parameters(net->parameters(), 1);
    torch::optim::SGD own(net->parameters(), 0.1);
    EXPECT_EQ(convert_sync_batch_norm(*net, world), 2);
    EXPECT_EQ(net->norm->world().size(), 3);
    step(*net, own, test::share(joined, world.rank(), 2), test::share(dy, world.rank(), 2), world);
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      test::expect_close(net->parameters()[i], whole.parameters()[i], {1e-5, 1e-5}, core::str("parameter ", i));
    }
  });
}

TEST(ConvertSyncBatchNorm, an_error_on_one_rank_is_every_ranks) {
  test::run(3, [](World& world) {
    Sequential net(BatchNorm1d(3));
    const auto handle = world.rank() == 1 ? net->ptr(0) : nullptr;
    const auto error = input_error([&] { convert_sync_batch_norm(net, world); });
    EXPECT_TRUE(mentions(error, "[rank 1] [nn.convert_sync_batch_norm] '0' is held")) << error;
    EXPECT_TRUE(std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(net->ptr(0)));
    Sequential other(Linear(2, 2), BatchNorm1d(3));
    EXPECT_EQ(convert_sync_batch_norm(other, world), 1);
  });
}

TEST(ConvertSyncBatchNorm, models_that_differ_are_an_error_on_every_rank) {
  test::run(2, [](World& world) {
    Sequential net(BatchNorm1d(3));
    if (world.rank() == 1) {
      net->push_back(BatchNorm1d(3));
    }
    const auto error = input_error([&] { convert_sync_batch_norm(net, world); });
    EXPECT_TRUE(mentions(error, "rank 1's model has other BatchNorm modules than rank 0's")) << error;
  });
}

}  // namespace
}  // namespace lockstep
