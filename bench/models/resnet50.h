// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/pooling.h"

namespace lockstep::bench {

class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(std::int64_t inputs, std::int64_t width, std::int64_t stride);
  /// [batch, inputs, height, width] -> [batch, 4 * width, height / stride, width / stride].
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d conv1_;
  lockstep::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  lockstep::nn::BatchNorm2d bn2_;
  torch::nn::Conv2d conv3_;
  lockstep::nn::BatchNorm2d bn3_;
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(Bottleneck);

/// ResNet-50 v1.5 (the stride is in the 3x3 convolution), with torchvision's names.
class ResNet50Impl : public torch::nn::Module {
 public:
  explicit ResNet50Impl(std::int64_t classes = 1000);
  /// Images [batch, 3, height, width] and labels, int64 [batch] -> the mean loss over the batch, fp32.
  at::Tensor forward(const at::Tensor& images, const at::Tensor& labels);

 private:
  torch::nn::Conv2d conv1_;
  lockstep::nn::BatchNorm2d bn1_;
  lockstep::nn::MaxPool2d pool_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};
TORCH_MODULE(ResNet50);

}  // namespace lockstep::bench
