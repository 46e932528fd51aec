// SPDX-License-Identifier: Apache-2.0
#include "models/resnet50.h"

#include <ATen/ATen.h>

#include "lockstep/nn/cross_entropy.h"

namespace lockstep::bench {

namespace nn = torch::nn;
namespace {

nn::Conv2d conv(std::int64_t inputs, std::int64_t outputs, std::int64_t kernel, std::int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(inputs, outputs, kernel).stride(stride).padding(kernel / 2).bias(false));
}

nn::Sequential stage(std::int64_t inputs, std::int64_t width, int blocks, std::int64_t stride) {
  nn::Sequential layers{Bottleneck(inputs, width, stride)};
  for (int i = 1; i < blocks; ++i) {
    layers->push_back(Bottleneck(4 * width, width, 1));
  }
  return layers;
}

}  // namespace

BottleneckImpl::BottleneckImpl(std::int64_t inputs, std::int64_t width, std::int64_t stride)
    : conv1_(register_module("conv1", conv(inputs, width, 1))),
      bn1_(register_module("bn1", lockstep::nn::BatchNorm2d(width))),
      conv2_(register_module("conv2", conv(width, width, 3, stride))),
      bn2_(register_module("bn2", lockstep::nn::BatchNorm2d(width))),
      conv3_(register_module("conv3", conv(width, 4 * width, 1))),
      bn3_(register_module("bn3", lockstep::nn::BatchNorm2d(4 * width))) {
  if (stride != 1 || inputs != 4 * width) {
    downsample_ =
        register_module("downsample", nn::Sequential(conv(inputs, 4 * width, 1, stride), nn::BatchNorm2d(4 * width)));
  }
}

at::Tensor BottleneckImpl::forward(const at::Tensor& x) {
  auto out = bn1_->forward_relu(conv1_->forward(x));
  out = bn2_->forward_relu(conv2_->forward(out));
  return bn3_->forward_relu(conv3_->forward(out), downsample_ ? downsample_->forward(x) : x);
}

ResNet50Impl::ResNet50Impl(std::int64_t classes)
    : conv1_(register_module("conv1", conv(3, 64, 7, 2))),
      bn1_(register_module("bn1", lockstep::nn::BatchNorm2d(64))),
      pool_(register_module("maxpool", lockstep::nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)))),
      layer1_(register_module("layer1", stage(64, 64, 3, 1))),
      layer2_(register_module("layer2", stage(256, 128, 4, 2))),
      layer3_(register_module("layer3", stage(512, 256, 6, 2))),
      layer4_(register_module("layer4", stage(1024, 512, 3, 2))),
      fc_(register_module("fc", nn::Linear(2048, classes))) {}

at::Tensor ResNet50Impl::forward(const at::Tensor& images, const at::Tensor& labels) {
  auto x = pool_->forward(bn1_->forward_relu(conv1_->forward(images)));
  x = layer4_->forward(layer3_->forward(layer2_->forward(layer1_->forward(x))));
  const auto logits = fc_->forward(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  return lockstep::nn::cross_entropy(logits, labels);
}

}  // namespace lockstep::bench
