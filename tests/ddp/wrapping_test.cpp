// SPDX-License-Identifier: Apache-2.0
// What may be wrapped, and that it stays what it is: its type, its tensors, their memory.
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/container/any.h>

#include "lockstep/comm/launch.h"
#include "lockstep/ddp/data_parallel.h"
#include "support/models.h"

namespace lockstep::wrapping {
namespace {

using torch::nn::AnyModule;
using torch::nn::Linear;

/// The model is `weight * input`, whose gradient is the mean of the ranks' inputs: 1, 2, ... n.
template <class Model, class Loss>
void expect_reduced(Model& model, World& world, const at::Tensor& weight, const Loss& loss) {
  DistributedDataParallel ddp(model, world);
  const auto before = weight.unsafeGetTensorImpl();
  loss(ddp, at::full({1, 1}, world.rank() + 1.0)).backward();
  EXPECT_FLOAT_EQ(weight.grad().item<float>(), static_cast<float>(world.size() + 1) / 2);
  EXPECT_EQ(weight.unsafeGetTensorImpl(), before);
  EXPECT_EQ(ddp.difference(), "");
}

class Wrapping : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Wrapping, testing::Values(1, 2, 3));

const auto kForward = [](auto& ddp, const at::Tensor& x) { return ddp.forward(x).sum(); };

TEST_P(Wrapping, holders_shared_pointers_and_plain_modules) {
  run_ranks(GetParam(), [](World& world) {
    const auto options = torch::nn::LinearOptions(1, 1).bias(false);
    Linear holder(options);
    expect_reduced(holder, world, holder->weight, kForward);
    auto pointer = std::make_shared<torch::nn::LinearImpl>(options);
    expect_reduced(pointer, world, pointer->weight, kForward);
    torch::nn::LinearImpl plain(options);
    expect_reduced(plain, world, plain.weight, kForward);
    torch::nn::Sequential list{Linear(options), torch::nn::Tanh()};
    expect_reduced(list, world, list->parameters()[0], [&](auto& /*ddp*/, const at::Tensor& x) {
      return list[0]->template as<Linear>()->forward(x).sum();
    });
  });
}

TEST_P(Wrapping, an_AnyModule) {
  run_ranks(GetParam(), [](World& world) {
    const Linear inner(torch::nn::LinearOptions(1, 1).bias(false));
    AnyModule any(inner);
    expect_reduced(any, world, inner->weight, kForward);
  });
}

TEST_P(Wrapping, a_TorchScript_module) {
  run_ranks(GetParam(), [](World& world) {
    torch::jit::Module script("Scale");
    const auto weight = at::full({1, 1}, static_cast<double>(world.rank())).requires_grad_();
    script.register_parameter("weight", weight, /*is_buffer=*/false);
    script.register_buffer("count", at::full({1}, static_cast<double>(world.rank())));
    script.define("def forward(self, x):\n  return x * self.weight\n");
    expect_reduced(script, world, weight, [](auto& ddp, const at::Tensor& x) {
      return ddp.forward(std::vector<c10::IValue>{x}).toTensor().sum();
    });
    EXPECT_EQ(weight.item<float>(), 0) << "rank 0's";
    EXPECT_EQ(script.attr("count").toTensor().item<float>(), 0);
  });
}

/// Gradients of a dense parameter have its strides, whatever their order; others are contiguous.
TEST_P(Wrapping, memory_formats_stay_and_gradients_have_them) {
  run_ranks(GetParam(), [](World& world) {
    const auto base = test::random({2, 3, 4, 5}, static_cast<std::uint64_t>(world.rank()));
    const std::vector<at::Tensor> layouts{
        base.contiguous(at::MemoryFormat::ChannelsLast),
        test::random({2, 3, 2, 2, 2}, 1).contiguous(at::MemoryFormat::ChannelsLast3d),
        test::random({4, 6}, 2).t(),
        test::random({3, 4, 5}, 3).permute({2, 0, 1}),
        test::random({6, 8}, 4).narrow(1, 1, 3),
    };
    ModelTensors tensors;
    for (const auto& layout : layouts) {
      tensors.parameters.push_back({"p" + std::to_string(tensors.parameters.size()), layout.detach().requires_grad_()});
    }
    const DataParallelBase ddp(tensors, world);
    auto loss = at::zeros({});
    for (const auto& p : tensors.parameters) {
      loss = loss + (p.tensor * p.tensor.detach() * (world.rank() + 1.0)).sum();
    }
    loss.backward();
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      const auto& p = tensors.parameters[i].tensor;
      EXPECT_EQ(p.strides(), layouts[i].strides()) << i;
      const bool dense = p.is_non_overlapping_and_dense();
      EXPECT_EQ(p.grad().strides(), dense ? p.strides() : at::empty(p.sizes()).strides()) << i;
      EXPECT_TRUE(at::allclose(p.grad(), p.detach() * (world.size() + 1) / 2)) << i;
    }
    EXPECT_EQ(ddp.difference(), "");
  });
}

}  // namespace
}  // namespace lockstep::wrapping
